"""Streams what an event log has and will have, as fast as the client reads."""

from __future__ import annotations

import asyncio

from fastovms.api.responses.stored.event_log import EventLog
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.sse_frames import DONE, without_name
from fastovms.http.routing.messages import HeaderPairs, Request


async def replay(
    request: Request, log: EventLog, start: int, dialect: Dialect, *, headers: HeaderPairs = ()
) -> None:
    """Streams a log, and returns when it is closed and all of it is sent, or when it is cut.

    Args:
        start: number of the first event.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    stream = request.stream(headers=headers)
    next_number = start

    def send() -> None:
        nonlocal next_number
        if done.done():
            return
        if log.is_cut:
            stream.abort()  # the client asks for the rest where that is made
            done.set_result(None)
            return
        if not stream.writable:
            return
        frames = log.read(next_number)
        next_number += len(frames)
        data = b"".join(frames if dialect.responses.names_events else map(without_name, frames))
        if next_number < log.num_events:
            stream.send(data)
            loop.call_soon(send)  # others are served first
        elif log.is_closed:
            stream.finish(data + DONE)
            done.set_result(None)
        elif data:
            stream.send(data)

    stream.on_writable = send
    log.listen(stream, send)
    try:
        send()
        await done
    finally:
        log.forget(stream)
