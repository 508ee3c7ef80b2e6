"""What tests of backends share: who listens to a request, and when all of them are over."""

from __future__ import annotations

import asyncio

from fastovms.backend import GenerationBackend
from fastovms.params import GenerationOutput, GenerationRequest, SamplingParams


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


def request(request_id: str, prompt: list[int], **params: object) -> GenerationRequest:
    return GenerationRequest(
        request_id,
        prompt,
        SamplingParams(**{"temperature": 0, **params}),  # type: ignore[arg-type]
    )


async def idle(backend: GenerationBackend) -> None:
    """Returns once nothing runs and every block is free; a time-out fails the test."""
    async with asyncio.timeout(60):
        while True:
            stats = backend.stats()
            if not stats.num_running and not stats.num_waiting:
                assert stats.num_free_blocks == stats.num_blocks
                return
            await asyncio.sleep(0.001)
