"""Clients that disconnect from a server at every stage of a request, in several ways."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from bench.endurance.server import MODEL

HOST: Final = "127.0.0.1"
PATIENCE: Final = 60.0
"""The seconds after which a client counts as stuck."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_SMALL_BUFFER: Final = 4096
_DRIP_PAUSE: Final = 0.05
_END_OF_EVENT: Final = b"\n\n"


class Leaver:
    """A client: a connection and the bytes that it has received.

    Args:
        context: the TLS context; None = plain HTTP.
        statuses: counts the responses by status.
    """

    def __init__(
        self,
        port: int,
        rng: random.Random,
        context: ssl.SSLContext | None,
        statuses: Counter[int],
    ) -> None:
        self.rng = rng
        self._port = port
        self._context = context
        self._statuses = statuses
        self._reader: asyncio.StreamReader
        self._sock: socket.socket
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, *, receive_buffer: int | None = None, is_safe: bool = True) -> None:
        """Connects. `is_safe` says whether to make a TLS handshake if the server requires one."""
        sock = self._sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (HOST, self._port))
            context = self._context if is_safe else None
            self._reader, self._writer = await asyncio.open_connection(
                sock=sock,
                ssl=context,
                server_hostname=None if context is None else "localhost",
                limit=_SMALL_BUFFER if receive_buffer is not None else 2**16,
            )
        except BaseException:
            sock.close()
            raise

    def send(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    async def drip(self, data: bytes) -> None:
        """Sends the data byte by byte."""
        for i in range(len(data)):
            self.send(data[i : i + 1])
            await asyncio.sleep(_DRIP_PAUSE)

    async def pause(self, longest: float) -> None:
        await asyncio.sleep(self.rng.uniform(0, longest))

    async def read_events(self, count: int) -> None:
        """Reads the head of a response and the given number of events, or fewer if the response
        ends."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        self._statuses[status] += 1
        for _ in range(count if status == 200 else 0):
            event = await self._reader.readuntil(_END_OF_EVENT)
            if b"[DONE]" in event:
                return

    async def leave(self, how: str) -> None:
        if self._writer is None:
            return
        transport = self._writer.transport
        if how == "RST":
            if self._sock.fileno() >= 0:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
        elif how == "half-close" and transport.can_write_eof():
            transport.write_eof()
            await self._reader.read(-1)
            transport.close()
        else:
            transport.close()


WAYS: Final = ("FIN", "RST", "half-close")

Stage = Callable[[Leaver], Awaitable[None]]


def _post(path: str, *, fields: str = "", **members: object) -> tuple[bytes, bytes]:
    """Returns the head and the body of a request."""
    body = json.dumps({"model": MODEL, **members}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if "Transfer-Encoding" not in fields:
        head += f"Content-Length: {len(body)}\r\n"
    return f"{head}{fields}\r\n".encode(), body


def _completion(leaver: Leaver, *, stream: bool, longest: int, fields: str = "") -> bytes:
    max_tokens = leaver.rng.randint(1, longest)
    head, body = _post(
        "/v1/completions",
        fields=fields,
        prompt="Once upon a time " * leaver.rng.choice((1, 1, 10, 60)),
        max_tokens=max_tokens,
        ignore_eos=True,
        stream=stream,
        n=leaver.rng.choice((1, 1, 1, 4)),
    )
    return head + body


async def _upon_connecting(leaver: Leaver) -> None:
    await leaver.connect()
    await leaver.pause(0.1)


async def _within_the_head(leaver: Leaver) -> None:
    await leaver.connect()
    data = _completion(leaver, stream=False, longest=10)
    leaver.send(data[: leaver.rng.randrange(1, data.index(b"\r\n\r\n"))])
    await leaver.pause(0.2)


async def _within_the_body(leaver: Leaver) -> None:
    await leaver.connect()
    data = _completion(leaver, stream=False, longest=10)
    leaver.send(data[: leaver.rng.randrange(data.index(b"\r\n\r\n") + 4, len(data))])
    await leaver.pause(0.2)


async def _within_a_chunked_body(leaver: Leaver) -> None:
    await leaver.connect()
    head, body = _post("/v1/completions", fields="Transfer-Encoding: chunked\r\n", prompt="x")
    leaver.send(head + b"%x\r\n" % len(body) + body[: leaver.rng.randrange(len(body))])
    await leaver.pause(0.2)


async def _told_to_continue(leaver: Leaver) -> None:
    await leaver.connect()
    head, _ = _post("/v1/completions", fields="Expect: 100-continue\r\n", prompt="x" * 100)
    leaver.send(head)
    await leaver.pause(0.2)


async def _while_it_waits(leaver: Leaver) -> None:
    await leaver.connect()
    leaver.send(_completion(leaver, stream=False, longest=400))
    await leaver.pause(0.5)


async def _behind_pipelined_requests(leaver: Leaver) -> None:
    await leaver.connect()
    for _ in range(leaver.rng.randint(2, 12)):
        leaver.send(_completion(leaver, stream=leaver.rng.random() < 0.5, longest=50))
    await leaver.pause(0.5)


async def _within_a_stream(leaver: Leaver) -> None:
    await leaver.connect()
    leaver.send(_completion(leaver, stream=True, longest=400))
    await leaver.read_events(leaver.rng.choice((0, 1, 5, 50)))


async def _behind_a_stream(leaver: Leaver) -> None:
    await leaver.connect()
    leaver.send(_completion(leaver, stream=True, longest=10))
    await leaver.read_events(1000)
    await leaver.pause(0.2)


async def _within_a_response(leaver: Leaver) -> None:
    await leaver.connect()
    head, body = _post(
        "/v1/responses", input="Once upon a time", max_output_tokens=200, stream=True
    )
    leaver.send(head + body)
    await leaver.read_events(leaver.rng.choice((0, 1, 20)))


async def _behind_a_background_response(leaver: Leaver) -> None:
    await leaver.connect()
    head, body = _post("/v1/responses", input="Once", max_output_tokens=16, background=True)
    leaver.send(head + body)
    await leaver.pause(0.1)


async def _as_a_slow_reader(leaver: Leaver) -> None:
    await leaver.connect(receive_buffer=_SMALL_BUFFER)
    leaver.send(_completion(leaver, stream=True, longest=2000))
    await leaver.pause(3)


async def _as_a_slow_writer(leaver: Leaver) -> None:
    await leaver.connect()
    data = _completion(leaver, stream=False, longest=1)
    await leaver.drip(data[: leaver.rng.randrange(60)])


STAGES: Final[tuple[Stage, ...]] = (
    _upon_connecting,
    _within_the_head,
    _within_the_body,
    _within_a_chunked_body,
    _told_to_continue,
    _while_it_waits,
    _behind_pipelined_requests,
    _within_a_stream,
    _behind_a_stream,
    _within_a_response,
    _behind_a_background_response,
    _as_a_slow_reader,
    _as_a_slow_writer,
)


def client_hello() -> bytes:
    """Returns the first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(
        incoming, outgoing, server_hostname="localhost"
    )
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


async def _before_the_handshake(leaver: Leaver) -> None:
    await leaver.connect(is_safe=False)
    await leaver.pause(0.3)


async def _within_the_hello(leaver: Leaver) -> None:
    await leaver.connect(is_safe=False)
    hello = client_hello()
    leaver.send(hello[: leaver.rng.randrange(1, len(hello))])
    await leaver.pause(0.3)


async def _behind_the_hello(leaver: Leaver) -> None:
    await leaver.connect(is_safe=False)
    leaver.send(client_hello())
    await leaver.pause(0.3)


async def _after_garbage(leaver: Leaver) -> None:
    await leaver.connect(is_safe=False)
    leaver.send(leaver.rng.randbytes(leaver.rng.randint(1, 2000)))
    await leaver.pause(0.3)


TLS_STAGES: Final[tuple[Stage, ...]] = (
    _before_the_handshake,
    _within_the_hello,
    _behind_the_hello,
    _after_garbage,
    _upon_connecting,
    _within_the_body,
    _while_it_waits,
    _within_a_stream,
    _as_a_slow_reader,
)


async def visit(leaver: Leaver, stage: Stage, way: str, until: float | None) -> bool:
    """Connects, runs one stage and disconnects. Returns False if the client was stuck.

    Args:
        until: the time of the loop at which the client disconnects at any stage; None = at the end
            of its stage.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await stage(leaver)
                        if until is not None:
                            await asyncio.sleep(until - asyncio.get_running_loop().time())
            finally:
                await leaver.leave(way)
    except TimeoutError:
        return False
    except (OSError, EOFError, asyncio.LimitOverrunError):
        pass  # the server has closed the connection, as it may
    return True
