"""Sends the requests of a load when they are due, and records their streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NamedTuple

from fastovms.client.http_client import HttpClient
from fastovms.client.request_failed import RequestFailed
from fastovms.load_test.timeline import Load, Timeline

OnEnd = Callable[[Timeline], None]
"""Is told of each request that has ended."""


class LoadRequest(NamedTuple):
    """One request, and when it is due, in seconds from the start."""

    path: str
    body: bytes
    due: float = 0.0


class Cancelled(RequestFailed):
    """The load was ended before the request was."""

    def __init__(self) -> None:
        super().__init__("cancelled", "")


async def run_load(
    client: HttpClient,
    requests: Sequence[LoadRequest],
    *,
    max_concurrency: int | None = None,
    max_seconds: float | None = None,
    on_end: OnEnd = lambda timeline: None,
) -> Load:
    """Runs a load to its end. A request that fails has a timeline that says why.

    Connecting is not measured: each request has an open connection before its clock starts.

    Args:
        requests: in the order of their times.
        max_seconds: after which a request is given up; None = never.
        on_end: is told of those too that are in flight when this is cancelled.
    """
    slots: AbstractAsyncContextManager[object] = (
        nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    )
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for request in requests:
            wait = start + request.due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(group.create_task(_run(client, request, slots, max_seconds, on_end)))
    return Load.of([task.result() for task in tasks])


async def _run(
    client: HttpClient,
    request: LoadRequest,
    slots: AbstractAsyncContextManager[object],
    max_seconds: float | None,
    on_end: OnEnd,
) -> Timeline:
    async with slots:
        timeline = Timeline(started=time.perf_counter())
        try:
            async with asyncio.timeout(max_seconds), client.connection() as connection:
                timeline.started = time.perf_counter()
                await connection.exchange("POST", request.path, request.body, timeline.record)
            if not timeline.arrivals:
                raise RequestFailed("no output", "the stream ended without a token")
        except RequestFailed as error:
            timeline.failure = error
        except TimeoutError:
            timeline.failure = RequestFailed("timeout", f"no end after {max_seconds:g} s")
        except asyncio.CancelledError:
            timeline.failure = Cancelled()
            raise
        finally:
            timeline.ended = time.perf_counter()
            on_end(timeline)
    return timeline
