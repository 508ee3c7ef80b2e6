"""Puts the prefix cache on disk between a thread and its engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from fastovms.backend_stats import StoredPrefixStats
from fastovms.backends.engine_thread.engine_loop import add_request
from fastovms.engine.engine import Engine
from fastovms.engine.stored_prefixes.model_blocks import ModelBlocks
from fastovms.engine.stored_prefixes.reading_policy import ReadingPolicy
from fastovms.engine.stored_prefixes.restoring import PrefixRestorer
from fastovms.engine.stored_prefixes.saving import PrefixSaver
from fastovms.params import EngineOutput, GenerationRequest

_READ_TIMEOUT: Final = 1.0
"""Seconds that a block may take which is being read at the end."""


class PrefixEngine:
    """An engine whose requests wait for what is on disk of their prompts; a `SteppedEngine`."""

    def __init__(
        self,
        engine: Engine,
        stored: ModelBlocks,
        *,
        call: Callable[[Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            call: has a function called on the thread of the engine, between two steps.
            call_later: the same after some seconds.
        """
        self.admitted: Sequence[str] = ()
        self._engine = engine
        self._stored = stored
        self._clock = clock
        self._stats = StoredPrefixStats()
        self._policy = ReadingPolicy()
        self._restorer = PrefixRestorer(
            stored, engine.blocks, self._policy, self._stats, call=call, call_later=call_later
        )
        self._aborted: dict[str, list[int]] = {}
        self._saver = PrefixSaver(
            stored, engine.blocks, self._stats, call=call, is_busy=lambda: engine.has_work
        )
        engine.on_prompt = self._saver.note

    @property
    def has_work(self) -> bool:
        return self._restorer.has_ready or self._engine.has_work

    @property
    def num_held(self) -> int:
        """How many samples wait for the disk."""
        return self._restorer.num_held

    @property
    def is_writing(self) -> bool:
        """Whether blocks are being written."""
        return self._saver.is_writing

    @property
    def stats(self) -> StoredPrefixStats:
        """A copy, of now."""
        return replace(self._stats, **self._stored.held._asdict())

    def add(self, request: GenerationRequest) -> None:
        if not self._restorer.hold(request):
            self._engine.add(request)

    def abort(self, request_id: str, index: int | None = None) -> None:
        if index is not None and self._restorer.is_held(request_id):
            self._aborted.setdefault(request_id, []).append(index)
        elif self._restorer.discard(request_id):
            self._aborted.pop(request_id, None)
        else:
            self._engine.abort(request_id, index)

    def step(self) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        for request in self._restorer.take_ready():
            outputs += add_request(self._engine, request)
            for index in self._aborted.pop(request.request_id, ()):
                self._engine.abort(request.request_id, index)
        self.admitted = ()
        if self._engine.has_work:
            num_before, start = self._engine.counters.num_prefill_tokens, self._clock()
            outputs += self._engine.step()
            num_computed = self._engine.counters.num_prefill_tokens - num_before
            self._policy.learn_computed(num_computed, self._clock() - start)
            self.admitted = self._engine.admitted
        return outputs

    def close(self) -> None:
        """Writes what is worth it, for some seconds at most."""
        self._restorer.close(_READ_TIMEOUT)
        self._saver.close()
