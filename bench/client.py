"""A streaming client that costs little: it shares the machine with the server it measures.

It counts events and looks at the clock; of the bodies it reads the usage alone.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit

EVENT = b"data: "
DONE = b"data: [DONE]"
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')


class Target(NamedTuple):
    """Where requests go: the base URL of an OpenAI-compatible API, such as
    http://127.0.0.1:8000/v1."""

    host: str
    port: int
    path: str

    @classmethod
    def from_url(cls, url: str) -> Target:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"{url!r} is not an http:// address")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/"))


class RequestFailed(Exception):
    """The server answered with an error or cut the stream."""


@dataclass(slots=True)
class Timeline:
    """When one stream's text arrived, in seconds of one clock.

    Attributes:
        arrivals: of each read that brought an event.
        num_events: events in all, the end marker and usage included.
    """

    started: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    num_events: int = 0
    num_tokens: int = 0

    @property
    def time_to_first_token(self) -> float:
        return self.arrivals[0] - self.started

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.arrivals)]


class Load(NamedTuple):
    """What several streams at once came to. `seconds` from the first request to the last token."""

    seconds: float
    timelines: list[Timeline]

    @property
    def num_tokens(self) -> int:
        return sum(timeline.num_tokens for timeline in self.timelines)

    @property
    def num_events(self) -> int:
        return sum(timeline.num_events for timeline in self.timelines)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


class _StreamReader(asyncio.Protocol):
    """One connection with one request. Reads up to the end marker, whatever the framing."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.timeline = Timeline()
        self._done = done
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        timeline = self.timeline
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self._fail(data)
            return
        # What is kept here of the tail is one byte too short to be counted twice.
        num_events = (self._tail[1 - len(EVENT) :] + data).count(EVENT)
        if num_events:
            timeline.num_events += num_events
            timeline.arrivals.append(now)
        self._tail = (self._tail + data)[-1024:]
        if DONE in self._tail and not self._done.done():
            if found := _COMPLETION_TOKENS.findall(self._tail):
                timeline.num_tokens = int(found[-1])
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(b"the connection was closed before the end of the stream")

    def _fail(self, data: bytes) -> None:
        if not self._done.done():
            self._done.set_exception(RequestFailed(data.decode(errors="replace")))


async def run_load(target: Target, bodies: list[dict[str, object]]) -> Load:
    """Sends every request at once, each on a connection of its own, and reads them to the end.

    Connecting is not measured. Bodies must ask for a stream with usage.

    Raises:
        RequestFailed: of the first stream that did not end as it should.
    """
    loop = asyncio.get_running_loop()
    streams: list[tuple[asyncio.Transport, _StreamReader]] = []
    ends = [loop.create_future() for _ in bodies]
    try:
        for end in ends:
            connect = partial(_StreamReader, end)
            streams.append(await loop.create_connection(connect, target.host, target.port))
        requests = [_post(target, body) for body in bodies]
        start = time.perf_counter()
        for (transport, reader), request in zip(streams, requests, strict=True):
            reader.timeline.started = time.perf_counter()
            transport.write(request)
        await asyncio.gather(*ends)
    finally:
        for end in ends:
            end.cancel()
        for transport, _ in streams:
            transport.close()
    timelines = [reader.timeline for _, reader in streams]
    return Load(max(timeline.arrivals[-1] for timeline in timelines) - start, timelines)


def completion(
    model: str, prompt_token_ids: list[int], num_output_tokens: int
) -> dict[str, object]:
    """The body of a greedy request that runs to its last token."""
    return {
        "model": model,
        "prompt": prompt_token_ids,
        "max_tokens": num_output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _post(target: Target, body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {target.path}/completions HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
