"""Puts the prefix cache on disk between a thread and its engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from fastovms.backend_stats import StoredPrefixStats
from fastovms.backends.engine_thread.engine_loop import add_request
from fastovms.engine.engine import Engine
from fastovms.engine.stored_prefixes.model_blocks import ModelBlocks
from fastovms.engine.stored_prefixes.reading_policy import ReadingPolicy
from fastovms.engine.stored_prefixes.restoring import PrefixRestorer
from fastovms.engine.stored_prefixes.saving import PrefixSaver
from fastovms.params import EngineOutput, GenerationRequest

logger = logging.getLogger(__name__)

_READ_TIMEOUT: Final = 1.0
"""Seconds that a block may take which is being read at the end."""


class PrefixEngine:
    """An engine whose requests wait for what is on disk of their prompts; a `SteppedEngine`.

    The disk only ever saves work: where it goes wrong in a way that nobody has foreseen, the engine
    goes on without it.
    """

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
            stored,
            engine.blocks,
            self._policy,
            self._stats,
            call=lambda function: call(partial(self._try, function)),
            call_later=lambda seconds, function: call_later(seconds, partial(self._try, function)),
        )
        self._aborted: dict[str, list[int]] = {}
        self._saver = PrefixSaver(
            stored,
            engine.blocks,
            self._stats,
            call=lambda function: call(partial(self._try, function)),
            is_busy=lambda: engine.has_work,
        )
        engine.on_prompt = lambda sequence: self._try(partial(self._saver.note, sequence))
        engine.scheduler.reclaim_blocks = self._reclaim

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
        self._try(partial(self._restorer.hold, request))
        if not self._restorer.is_held(request.request_id):
            self._engine.add(request)

    def abort(self, request_id: str, index: int | None = None) -> None:
        if not self._restorer.is_held(request_id):
            self._engine.abort(request_id, index)
        elif index is not None:
            self._aborted.setdefault(request_id, []).append(index)
        else:
            self._try(partial(self._restorer.discard, request_id))
            self._aborted.pop(request_id, None)

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

    def close(self, *, flush: bool = True) -> None:
        """Ends the threads. What is worth it is written before, for some seconds at most, unless
        the engine has failed and its blocks are not to be trusted."""
        self._restorer.close(_READ_TIMEOUT)
        self._try(partial(self._saver.close, flush=flush))

    def _reclaim(self) -> bool:
        """Takes back all blocks that are being read into, and returns whether there were any."""
        holds_blocks = self._restorer.holds_blocks
        self._try(self._restorer.reclaim)
        return holds_blocks

    def _try(self, function: Callable[[], object]) -> None:
        """Calls a function of the prefix cache, which is switched off when it fails."""
        try:
            function()
        except Exception:
            logger.exception("prefix cache: it has failed, and is not used any more")
            self._saver.give_up()
            self._restorer.give_up()
