"""An engine with the fake model and a prefix cache on disk; a test decides when calls of other
threads run."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastovms.config import EngineConfig
from fastovms.engine.model.model import Model
from fastovms.params import GenerationRequest
from fastovms.parts.prefix_cache.directory import BlockDirectory
from fastovms.parts.prefix_cache.engine import PrefixEngine
from fastovms.parts.prefix_cache.stored_prefixes import ModelBlocks, PrefixFiles
from tests.engine.engines import full_engine, greedy
from tests.engine.fake_model import FakeModel

BLOCK_SIZE = 4


def request(
    name: str, prompt: list[int], *, salt: str | None = None, tenant: str = "", **params: Any
) -> GenerationRequest:
    asked = greedy(name, prompt, **{"max_tokens": 4, **params})
    return replace(asked, cache_salt=salt, tenant=tenant)


class StoredEngine:
    """An engine. Several of them one after another simulate restarts of a process."""

    def __init__(
        self,
        directory: BlockDirectory,
        *,
        num_blocks: int = 256,
        model: Model | None = None,
        fingerprint: bytes = b"f",
        keeps_salted: bool = False,
    ) -> None:
        model = FakeModel(BLOCK_SIZE) if model is None else model
        model.allocate_cache(num_blocks)
        self.engine = full_engine(
            model,
            EngineConfig(max_num_seqs=8),
            num_blocks=num_blocks,
            max_model_len=min(800, num_blocks * model.block_size),
        )
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.timers: list[Callable[[], None]] = []
        self.prefixes = PrefixEngine(
            self.engine,
            ModelBlocks(model, PrefixFiles(directory, "0-m", fingerprint, keeps_salted)),
            call=self.calls.put,
            call_later=lambda _, function: self.timers.append(function),
        )

    def call_next(self) -> None:
        """Waits for another thread's call, and runs it."""
        self.calls.get(timeout=60)()

    def run(self) -> dict[str, list[int]]:
        """Runs until every request is finished, and returns their texts."""
        texts: dict[str, list[int]] = {}
        while self.prefixes.has_work or self.prefixes.num_held:
            if not self.prefixes.has_work:
                self.call_next()
                continue
            for request_id, output in self.prefixes.step():
                assert output.error is None
                texts.setdefault(request_id, []).extend(output.token_ids)
        self.engine.blocks.check([])
        return texts

    def ask(self, asked: GenerationRequest) -> list[int]:
        self.prefixes.add(asked)
        return self.run()[asked.request_id]

    def write_all(self) -> None:
        """Runs the writer's calls until there are no more."""
        while self.prefixes.is_writing:
            self.call_next()

    def fire_timers(self) -> None:
        """Advances the clock past all timers of waiting requests."""
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()

    def check(self) -> None:
        """Asserts that all blocks are accounted for, including those that are being read."""
        scheduler = self.engine.scheduler
        sequences = [*scheduler.running, *scheduler.waiting]
        restorations = self.prefixes._restorer._running.values()
        self.engine.blocks.check(
            [*(s.block_table for s in sequences), *(r._block_table for r in restorations)]
        )

    @property
    def num_restored(self) -> int:
        return self.prefixes.stats.num_tokens_restored


@contextmanager
def stored_engine(path: Path, **options: object) -> Iterator[StoredEngine]:
    directory = BlockDirectory(path, 1 << 20)
    engine = StoredEngine(directory, **options)  # type: ignore[arg-type]
    yield engine
    engine.prefixes.close()
    directory.close()
