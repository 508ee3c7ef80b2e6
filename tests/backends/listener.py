"""Shared helpers of backend tests: a listener of a request, and waiting until a backend is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastovms.backend import GenerationBackend
from fastovms.params import GenerationOutput, ModelInfo
from tests.engine.fake_model import VOCAB_SIZE

FAKE = ModelInfo("fake", 0, 4096, VOCAB_SIZE, frozenset())
"""The information of a fake model."""


class Listener:
    """Collects one request's outputs."""

    def __init__(self, num_samples: int = 1) -> None:
        self.outputs: list[GenerationOutput] = []
        self.started = asyncio.Event()
        self.done = asyncio.Event()
        self._num_unfinished = num_samples

    def __call__(self, output: GenerationOutput) -> None:
        self.outputs.append(output)
        self.started.set()
        self._num_unfinished -= output.finish_reason is not None
        if not self._num_unfinished:
            self.done.set()

    def text(self, index: int = 0) -> list[int]:
        return [t for o in self.outputs if o.index == index for t in o.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition that other threads fulfil. A time-out fails the test."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def idle(backend: GenerationBackend) -> None:
    """Returns when nothing runs and every block is free."""
    await until(lambda: not (backend.stats().num_running or backend.stats().num_waiting))
    stats = backend.stats()
    assert stats.num_free_blocks == stats.num_blocks
