"""Streams of an openai client through Envoy, and on which replica each of them was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import openai

from bench.endurance.server import MODEL
from tests.deploy.envoy.process import Envoy

_TIMEOUT: Final = 120.0
_LOG_TIMEOUT: Final = 10.0


@dataclass(slots=True)
class Stream:
    """
    Attributes:
        id: of the request, which Envoy's access log has too.
        num_events: that have come.
        has_ended: it came to its end.
        error: that the client raised instead.
        replica: address and port of who answered.
    """

    id: str
    num_events: int = 0
    has_ended: bool = False
    error: openai.APIError | None = None
    replica: str = ""


class Streams:
    """Completions through one openai client that does not retry."""

    def __init__(self, url: str, count: int, max_tokens: int) -> None:
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=_TIMEOUT
        )
        self._max_tokens = max_tokens
        self.all = [Stream(f"fleet-stream-{number}") for number in range(count)]

    @property
    def have_begun(self) -> bool:
        return all(stream.num_events for stream in self.all)

    @property
    def num_running(self) -> int:
        return sum(not (stream.has_ended or stream.error) for stream in self.all)

    async def run(self) -> None:
        """Reads all streams to their ends."""
        await asyncio.gather(*map(self._read, self.all))

    async def ask_again(self, streams: Sequence[Stream]) -> int:
        """Asks for the same as these did, in new streams, and returns how many of those failed."""
        again = [Stream(f"{stream.id}-again") for stream in streams]
        await asyncio.gather(*map(self._read, again))
        return sum(stream.error is not None for stream in again)

    async def close(self) -> None:
        await self._client.close()

    async def _read(self, stream: Stream) -> None:
        try:
            chunks = await self._client.completions.create(
                model=MODEL,
                prompt=f"Story {stream.id}: once upon a time",
                max_tokens=self._max_tokens,
                stream=True,
                extra_body={"ignore_eos": True},
                extra_headers={"X-Request-Id": stream.id},
            )
            async for _ in chunks:
                stream.num_events += 1
            stream.has_ended = True
        except openai.APIError as error:
            stream.error = error


async def find_replicas(streams: Sequence[Stream], envoy: Envoy) -> None:
    """Reads in Envoy's access log who answered streams that are over.

    Raises:
        TimeoutError: the log does not have all of them.
    """
    left = {stream.id: stream for stream in streams}
    async with asyncio.timeout(_LOG_TIMEOUT):
        while left:
            for line in envoy.log.read_text().splitlines():
                if line.startswith('{"') and line.endswith("}"):
                    entry = json.loads(line)
                    if stream := left.pop(entry["request_id"], None):
                        stream.replica = entry["replica"]
            await asyncio.sleep(0.1)
