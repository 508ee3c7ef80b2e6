"""The engine wrapper that adds the prefix cache on disk to a paged model."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import openvino as ov

from fastovms.backend_stats import BackendStats, StoredPrefixStats
from fastovms.backends.engine_thread import SteppedEngine, add_request
from fastovms.backends.paged.backend import BackendExtension, PagedBackend
from fastovms.engine.engine import Engine
from fastovms.engine.model.model import Model, PagedModel
from fastovms.params import EngineOutput, GenerationRequest, ModelInfo
from fastovms.parts.prefix_cache.directory import BlockDirectory
from fastovms.parts.prefix_cache.stored_prefixes import (
    ModelBlocks,
    PrefixFiles,
    PrefixRestorer,
    PrefixSaver,
    ReadingPolicy,
)

logger = logging.getLogger(__name__)


_FORMAT: Final = 1
"""The version of the blocks' content; a new version invalidates all cached blocks. Increment it
when graphs are rewritten differently."""

_MODEL_FILES: Final = ("openvino_model.xml", "openvino_model.bin")


class PrefixDirectory(NamedTuple):
    """The block directory that all models share, and whether prompts with a `cache_salt` are
    cached."""

    blocks: BlockDirectory
    keeps_salted: bool = False


def prefix_files(
    prefixes: PrefixDirectory, model: PagedModel, model_dir: Path, info: ModelInfo
) -> PrefixFiles | None:
    """Returns the location of a model's cached blocks; None = caching is not possible, for a reason
    that is logged."""
    if model.is_on_gpu:
        logger.info(
            "prefix cache: %s runs on a GPU, so its prompts are not stored on disk", info.name
        )
        return None
    fingerprint = _fingerprint(model, model_dir, info.max_model_len)
    folder = f"{fingerprint.hex()[:16]}-{re.sub(r'[^A-Za-z0-9._-]', '_', info.name)[:100]}"
    return PrefixFiles(prefixes.blocks, folder, fingerprint, prefixes.keeps_salted)


def _fingerprint(model: PagedModel, model_dir: Path, max_model_len: int) -> bytes:
    core = ov.Core()
    parts = [
        _FORMAT,
        [_file_identity(model_dir / file) for file in _MODEL_FILES],
        ov.get_version(),
        str(core.get_property(model.device, "FULL_DEVICE_NAME")),
        _cpu_flags(),
        model.cache_traits,
        max_model_len,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _file_identity(path: Path) -> list[object]:
    """Returns a value that changes when a file is replaced or written. It includes ctime, which
    cannot be forged: files from an archive may have the same size and mtime."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the instruction sets that the kernel reports, because rounding depends on them."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


_READ_TIMEOUT: Final = 1.0
"""Seconds to wait at shutdown for a block that is being read."""


class PrefixEngine:
    """Implements `SteppedEngine` over an engine. Requests wait until the cached part of their
    prompts is read from disk. After an unexpected error, the engine continues without the disk
    cache."""

    def __init__(
        self,
        engine: Engine,
        stored: ModelBlocks,
        *,
        call: Callable[[Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Args:
        call: calls a function on the engine's thread between two steps.
        call_later: calls a function on the engine's thread after some seconds.
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
        """The number of samples that wait for the disk."""
        return self._restorer.num_held

    @property
    def is_writing(self) -> bool:
        """Whether blocks are being written."""
        return self._saver.is_writing

    @property
    def stats(self) -> StoredPrefixStats:
        """A copy of the current statistics."""
        return replace(self._stats, **self._stored.held._asdict())

    def add(self, request: GenerationRequest) -> None:
        self._try(partial(self._restorer.start_reading, request))
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
        """Ends the threads. If `flush` is true, valuable blocks are written first, for at most some
        seconds; it is false if the engine has failed and its blocks cannot be trusted."""
        self._restorer.close(_READ_TIMEOUT)
        self._try(partial(self._saver.close, flush=flush))

    def _reclaim(self) -> bool:
        """Cancels all reads into blocks. Returns whether there were any."""
        holds_blocks = self._restorer.holds_blocks
        self._try(self._restorer.reclaim)
        return holds_blocks

    def _try(self, function: Callable[[], object]) -> None:
        """Calls a function of the disk cache, and switches the cache off if the function fails."""
        try:
            function()
        except Exception:
            logger.exception("prefix cache: failed and switched off")
            self._saver.give_up()
            self._restorer.give_up()


class StoredPrefixes(BackendExtension):
    """The prefix cache on disk of one backend."""

    def __init__(self, model: Model, files: PrefixFiles) -> None:
        self._model = model
        self._files = files
        self.engine: PrefixEngine | None = None

    def start(self, backend: PagedBackend) -> None:
        self.engine = PrefixEngine(
            backend.engine,
            ModelBlocks(self._model, self._files),
            call=backend.call,
            call_later=backend.call_later,
        )

    def wrap(self, engine: SteppedEngine) -> SteppedEngine:
        return self.engine or engine

    def add_stats(self, stats: BackendStats) -> BackendStats:
        if self.engine is None:
            return stats
        num_held = self.engine.num_held
        return replace(
            stats,
            num_waiting=stats.num_waiting + num_held,
            num_held=num_held,
            stored_prefixes=self.engine.stats,
        )

    def end(self, *, is_in_order: bool) -> None:
        if self.engine is not None:
            self.engine.close(flush=is_in_order)
