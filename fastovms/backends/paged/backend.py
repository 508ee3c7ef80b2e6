"""Backend over this project's own engine: loads a model and serves requests with it."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fastovms.backend import OutputCallback
from fastovms.backend_stats import BackendStats, StoredPrefixStats
from fastovms.backends.engine_thread import (
    Abort,
    Close,
    Command,
    ComputeTurn,
    EngineCall,
    LoopLink,
    Permits,
    RequestsInFlight,
    SteppedEngine,
    StepReport,
    Submit,
    WorkingEngines,
    check_length,
    run_engine,
)
from fastovms.backends.grammar_trials import guard_compiler
from fastovms.backends.model_files import (
    Comparison,
    check_graph,
    fit_cache,
    fit_vocabulary,
    load_grammar_compiler,
)
from fastovms.backends.paged.adapters import AdapterTable
from fastovms.backends.paged.decode_kernels import can_use_kernels, defer_kernels, prepare
from fastovms.backends.paged.draft_models import (
    fit_draft_files,
    load_draft_model,
    read_draft_files,
)
from fastovms.backends.paged.prefixes import (
    PrefixDirectory,
    PrefixEngine,
    fit_attention,
    prefix_files,
)
from fastovms.backends.paged.tuning import IdleTuning, Measurement, load_tuned, read_files
from fastovms.backends.processes import start_thread
from fastovms.config import EngineConfig
from fastovms.engine.draft_model import DraftModel
from fastovms.engine.engine import Engine
from fastovms.engine.model.devices import (
    CACHE_TOO_LARGE,
    GIB,
    MIB,
    available_memory,
    format_size,
    num_cache_blocks,
)
from fastovms.engine.model.graph_comparison import largest_difference
from fastovms.engine.model.model import ExportedModel, Model
from fastovms.engine.model.paging import reason_of
from fastovms.engine.row_functions import forget_compiler, load_kernels_beside
from fastovms.engine.stored_prefixes import ModelBlocks, PrefixFiles
from fastovms.errors import BackendUnavailable, ConfigurationError, EngineFailed, InvalidField
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import FinishReason, GenerationRequest, Grammar, ModelInfo, SamplingParams
from fastovms.system.disk import DiskCache


def paging_comparison(files: ExportedModel) -> Comparison:
    """Returns the comparison of the paged model with the exported graph."""
    return Comparison(
        "graph",
        "OpenVINO's paged attention",
        (files.model_dir / "openvino_model.xml", files.model_dir / "openvino_model.bin"),
        partial(largest_difference, files),
        weights_size=files.weights_size,
    )


@dataclass(frozen=True, slots=True)
class SharedCores:
    """Shared by the models of one process so that they do not compute at the same time.

    Attributes:
        engines: counts the working engines; watched by `turn` and `idle_tuning`.
        turn: makes engines' steps and encoders' slices take turns.
        idle_tuning: measures how models run fastest, while no engine works.
    """

    engines: WorkingEngines
    turn: ComputeTurn
    idle_tuning: IdleTuning

    @classmethod
    def create(cls) -> SharedCores:
        engines = WorkingEngines()
        return cls(engines, ComputeTurn(engines), IdleTuning(engines))


logger = logging.getLogger(__name__)


def reserve_cache(
    paged_model: Model,
    draft_model: DraftModel | None,
    model: ModelInfo,
    config: EngineConfig,
    available: int | None,
) -> int:
    """Reserves the caches of both models for the same number of tokens. Returns the number of
    blocks of the first cache.

    Args:
        available: free memory in bytes, for a cache of automatic size; None = ask the system.

    Raises:
        ConfigurationError: not even one block fits.
    """
    if available is None:
        available = available_memory()
    block_size = paged_model.block_size
    bytes_per_block = paged_model.bytes_per_block
    states = paged_model.states
    if draft_model is not None:
        bytes_per_block += math.ceil(block_size * draft_model.bytes_per_token)
    max_num_seqs = min(config.max_num_seqs, config.token_budget)  # see `Scheduler`
    max_useful_blocks = max_num_seqs * -(-model.max_model_len // block_size)
    num_blocks = num_cache_blocks(
        config.cache_size,
        bytes_per_block=bytes_per_block,
        extra_bytes=states.extra_bytes if states is not None else 0,
        max_useful_blocks=max_useful_blocks,
        available=available,
    )
    if num_blocks < 1:
        wanted = f"of {config.cache_size:g} GB" if config.cache_size else "of automatic size"
        raise ConfigurationError(
            f"a KV cache {wanted} holds no block of {bytes_per_block} bytes in the "
            f"{format_size(available)} that are free: raise --cache-size, or the memory or its "
            "limits (cgroup, ulimit -v)"
        )
    size = num_blocks * bytes_per_block
    if num_blocks < max_useful_blocks and available < int(config.cache_size * GIB):
        logger.warning(CACHE_TOO_LARGE, config.cache_size, size / GIB)
    try:
        paged_model.allocate_cache(num_blocks)
        if draft_model is not None:
            draft_model.allocate_cache(num_blocks * block_size)
    except MemoryError:
        raise ConfigurationError(
            f"the KV cache of {size / GIB:.3g} GB cannot be reserved: lower --cache-size, or raise "
            "the limit of the address space (ulimit -v)"
        ) from None
    logger.info(
        "KV cache: %d tokens (%d blocks of %d)", num_blocks * block_size, num_blocks, block_size
    )
    if states is not None:
        logger.debug(
            "KV cache: states take %.3g of the %.3g MB of a block, and %.3g "
            "MB outside the blocks; cached prefixes are multiples of %d tokens",
            states.num_bytes / MIB,
            paged_model.bytes_per_block / MIB,
            states.extra_bytes / MIB,
            block_size,
        )
    if num_blocks == max_useful_blocks and config.cache_size:
        logger.info(
            "KV cache: %.3g of %.3g GB are used, because %d sequences of %d tokens need no more",
            size / GIB,
            config.cache_size,
            max_num_seqs,
            model.max_model_len,
        )
    return num_blocks


class IdleMemory:
    """Manages memory while the engine is idle: commits cache memory in advance, then releases the
    memory of mapped model files. The files are checked again whenever the used part of the cache
    has doubled, because OpenVINO reads weights again for new step sizes."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._next_look = 0

    def tidy(self, num_used_blocks: int) -> bool:
        """Does one piece of work, of some milliseconds. Returns whether there was any.

        Args:
            num_used_blocks: the number of cache blocks that have been written.
        """
        if self._model.commit_ahead(num_used_blocks):
            return True
        if num_used_blocks < self._next_look:
            return False
        self._next_look = max(1, 2 * num_used_blocks)
        self._model.forget_files()
        forget_compiler()
        return True


# Runs the engine on a thread of its own, which hands whole steps' tokens to the event loop.


_CLOSE_TIMEOUT = 10.0
"""Seconds to wait for the running step when the backend is closed."""

_MAX_WAIT_FOR_REST = 5.0
"""Seconds that a piece of preparation waits at most for the engines to rest."""

_ROOM_FOR_BOTH = 4
"""How often the weights must fit into the free memory, so that a model is compiled while it is
compared with its export."""

_MAX_UNDELIVERED_STEPS = 8
"""How many steps the engine may be ahead of the loop. More would only queue tokens that cannot be
sent yet."""


class BackendParts(NamedTuple):
    """The parts of a backend besides its engine.

    Attributes:
        grammars: compiles grammars; None = they are refused.
        measurement: the tuning measurement to run while all engines are idle; None = none.
        cores: the cores shared with the other models; None = not shared.
        clock: returns seconds.
        prepare: is run in a thread of its own when the engine is warm. Its argument, before a piece
            of work, waits for the given seconds, then until no engine works or for some seconds,
            and returns whether the backend is still open. None = nothing is run.
        defer: is called at the start, and puts off what `prepare` does.
        adapters: the model's adapters; None = it has none.
    """

    grammars: GrammarCompiler | None = None
    measurement: Measurement | None = None
    cores: SharedCores | None = None
    clock: Callable[[], float] = time.perf_counter
    prepare: Callable[[Callable[[float], bool]], None] | None = None
    defer: Callable[[], None] = lambda: None
    adapters: AdapterTable | None = None


class PagedBackend:
    """Implements `GenerationBackend` over `Engine`.

    The engine thread receives commands, runs steps, and passes each step's outputs to the loop with
    one `call_soon_threadsafe`. While the loop decodes them, the thread runs the next inference
    without the GIL. Without work it manages memory, then sleeps on the command queue, so that
    tuning may run.

    Attributes:
        adapters: the model's adapters; None = adapters are not served.
    """

    def __init__(
        self,
        engine: Engine,
        model: ModelInfo,
        config: EngineConfig,
        parts: BackendParts,
        tidy: Callable[[int], bool] = lambda _: False,
        stored: ModelBlocks | None = None,
    ) -> None:
        """
        Args:
            tidy: manages the model's memory, given the number of used cache blocks; see
                `IdleMemory`.
            stored: the prompt cache on disk; None = no disk cache.
        """
        self._engine = engine
        self._stored = stored
        self._prefixes: PrefixEngine | None = None
        self._clock = parts.clock
        self._tidy = tidy
        self._measurement = parts.measurement
        self._prepare = parts.prepare
        self._defer = parts.defer
        self.adapters = parts.adapters
        self._cores = parts.cores or SharedCores.create()
        self._grammars = None if parts.grammars is None else guard_compiler(parts.grammars)
        self._model = model
        self._config = config
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._undelivered = Permits(_MAX_UNDELIVERED_STEPS)
        self._link = LoopLink()
        self._warm = asyncio.Event()
        self._requests = RequestsInFlight(
            max_num_waiting=config.max_num_queued_requests,
            abort=self.abort,
            clock=parts.clock,
            stats=self._take_stats(),
        )
        self._failure: str | None = None
        self._closing = threading.Event()

    @classmethod
    def load(cls, model_dir: Path, model: ModelInfo, config: EngineConfig) -> PagedBackend:
        """Loads a model that does not share the machine with others; see `compile`."""
        return cls.compile(model_dir, model, config)(available_memory())

    @classmethod
    def compile(
        cls,
        model_dir: Path,
        model: ModelInfo,
        config: EngineConfig,
        cache: DiskCache | None = None,
    ) -> Callable[..., PagedBackend]:
        """Compiles the model and its draft model, if any; takes seconds, so call it in a thread.

        Args:
            cache: stores the tuning results; None = not stored.

        Returns:
            The function that reserves the caches; see `choice.Reserve`.

        Raises:
            ConfigurationError: the device cannot run the model.
        """
        draft = None
        if config.draft_model is not None:  # a wrong one is refused before what takes long
            draft = read_draft_files(config.draft_model, model_dir, model)
        kernels = None
        if config.precision == "exact":  # NumPy rounds sums otherwise: another token could be drawn
            kernels = load_kernels_beside()
        cache = cache or DiskCache(None)
        files = read_files(model_dir, config, model.max_model_len)
        model = fit_attention(model, files.graph)
        model = fit_vocabulary(model, files.vocab_size)
        with ThreadPoolExecutor(1) as beside:  # compilation uses one core for most of its time
            checked = beside.submit(check_graph, paging_comparison(files), cache)
            if draft is not None or files.available_memory() < _ROOM_FOR_BOTH * files.weights_size:
                checked.result()
            if draft is not None:  # a head changes the graph
                draft = fit_draft_files(draft, files.graph, model.max_model_len)
            compiler = beside.submit(load_grammar_compiler, model_dir, model)
            try:
                paged_model, token_budget, is_to_be_measured = load_tuned(files, config, cache)
            finally:
                checked.result()
            grammars = compiler.result()
        measurement = Measurement(model_dir, config, cache) if is_to_be_measured else None
        if config.max_num_batched_tokens is None:
            config = replace(config, max_num_batched_tokens=token_budget)
        has_kernels = config.decode_kernels == "auto" and can_use_kernels(paged_model)
        adapters = None
        if config.serves_adapters:
            adapters = AdapterTable(
                paged_model,
                max_adapters=config.max_loras,
                max_rank=config.max_lora_rank,
                has_kernels=has_kernels,
            )
            adapters.load_first(config.lora_modules)
        draft_model = None if draft is None else load_draft_model(draft, model_dir, model, config)
        if kernels is not None:
            kernels.join()
        has_adapters = adapters is not None

        def reserve(
            available: int,
            prefixes: PrefixDirectory | None = None,
            cores: SharedCores | None = None,
        ) -> PagedBackend:
            stored = None
            if prefixes is not None and config.enable_prefix_caching:
                stored = prefix_files(prefixes, paged_model, model_dir, model)
            if paged_model.is_on_gpu:
                available = paged_model.available_memory()
            return cls.from_model(
                paged_model,
                model,
                config,
                BackendParts(
                    grammars,
                    measurement,
                    cores,
                    prepare=partial(prepare, paged_model, cache, has_kernels, has_adapters),
                    defer=defer_kernels,
                    adapters=adapters,
                ),
                draft_model=draft_model,
                available=available,
                prefixes=stored,
            )

        return reserve

    @classmethod
    def from_model(
        cls,
        paged_model: Model,
        model: ModelInfo,
        config: EngineConfig,
        parts: BackendParts | None = None,
        *,
        draft_model: DraftModel | None = None,
        available: int | None = None,
        prefixes: PrefixFiles | None = None,
    ) -> PagedBackend:
        """Reserves the cache of a loaded model; its context shrinks to what the cache can hold. The
        draft model's cache holds as many tokens, and both share the memory.

        Args:
            available: free memory in bytes, for a cache of automatic size; None = ask the system.
            prefixes: the directory of cached prompts.
        """
        parts = parts or BackendParts()
        num_blocks = reserve_cache(paged_model, draft_model, model, config, available)
        model = fit_cache(model, num_blocks * paged_model.block_size)
        engine = Engine(
            paged_model,
            config,
            num_blocks=num_blocks,
            max_model_len=model.max_model_len,
            grammars=parts.grammars,
            draft_model=draft_model,
        )
        stored = None if prefixes is None else ModelBlocks(paged_model, prefixes)
        return cls(engine, model, config, parts, IdleMemory(paged_model).tidy, stored)

    # Backend

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def failure(self) -> str | None:
        return self._failure

    def start(self) -> None:
        self._link.start()
        if self.adapters is not None:
            self.adapters.switch = self._call_and_wait
        if self._stored is not None:
            self._prefixes = PrefixEngine(
                self._engine, self._stored, call=self._call, call_later=self._call_later
            )
        self._defer()
        self._cores.engines.begin()
        start_thread(self._run, name="engine")
        if self._measurement is not None:
            self._cores.idle_tuning.add(self._measurement)
        if self._grammars is not None:
            self._grammars.start()

    async def warmed_up(self) -> None:
        await self._warm.wait()
        if self._failure is not None:
            raise EngineFailed(f"the engine has failed: {self._failure}")

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        if self._grammars is None:
            raise InvalidField(
                f"{grammar.param} needs a model with a tokenizer.json", param=grammar.param
            )
        return await self._grammars.compile(grammar, client)

    def check(self, params: SamplingParams) -> None:
        """Accepts every request, because this backend supports all parameters."""

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        if self._failure is not None:
            raise EngineFailed(f"the engine has failed: {self._failure}")
        if not self._link.is_started or self._closing.is_set():
            raise BackendUnavailable("the server is not ready to generate")
        check_length(request, self._model)
        self._engine.validate(request)
        if request.adapter is None:
            self._requests.add(request, on_output)
        else:
            assert self.adapters is not None
            release = self.adapters.hold(request.adapter)
            try:
                self._requests.add(request, on_output, release)
            except BaseException:
                release()
                raise
        self._commands.put(Submit(request))

    def abort(self, request_id: str, index: int | None = None) -> None:
        if self._requests.discard(request_id, index):
            self._commands.put(Abort(request_id, index))

    def stats(self) -> BackendStats:
        stats = self._requests.stats
        return stats if self._grammars is None else replace(stats, grammars=self._grammars.stats)

    def fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
            self._requests.end_all(FinishReason.ERROR, reason)

    async def close(self) -> None:
        if not self._link.is_started or self._closing.is_set():
            return
        self._closing.set()
        self._commands.put(Close())
        if self.adapters is not None:
            self.adapters.switch = None
        if self._measurement is not None:
            self._cores.idle_tuning.drop(self._measurement)
        if self._grammars is not None:
            self._grammars.close()
        self._requests.end_all(FinishReason.ABORT, None)
        if self._failure is None and not await self._link.wait(_CLOSE_TIMEOUT):
            logger.error(
                "engine: a step still runs %g s after the shutdown began; it is abandoned",
                _CLOSE_TIMEOUT,
            )

    # Event loop

    def _deliver(self, step: StepReport) -> None:
        self._undelivered.release()
        self._requests.deliver(step)

    # Engine thread

    def _run(self) -> None:
        is_in_order = False
        try:
            self._engine.warm_up()
            self._link.call(self._warm.set)
            if self._prepare is not None:
                try:
                    start_thread(partial(self._prepare, self._may_go_on), name="prepare")
                except RuntimeError as error:
                    logger.warning("decode kernels: not prepared: %s", error)
            engine: SteppedEngine = self._prefixes or self._engine
            run_engine(
                engine,
                receive=self._receive,
                take_stats=self._take_stats,
                publish=self._publish,
                clock=self._clock,
                turn=self._cores.turn.step,
            )
            is_in_order = True
        except EngineFailed as error:
            logger.error("engine: failed: %s", error)
            self._link.call(self.fail, str(error))
        except BaseException as error:  # Rust's panics are no Exceptions
            logger.exception("engine: failed")
            self._link.call(self.fail, f"{type(error).__name__}: {reason_of(error)}")
        finally:
            self._cores.engines.end()
            if self._prefixes is not None:
                self._prefixes.close(flush=is_in_order)
            self._link.call(self._warm.set)
            self._link.call(self._link.stopped.set)

    def _may_go_on(self, delay: float) -> bool:
        """See `BackendParts.prepare`."""
        if self._closing.wait(delay):
            return False
        self._cores.engines.wait_for_rest(_MAX_WAIT_FOR_REST)
        return not self._closing.is_set()

    def _publish(self, step: StepReport) -> None:
        self._undelivered.acquire()
        self._link.call(self._deliver, step)

    def _receive(self, wait: bool) -> list[Command]:
        commands: list[Command] = []
        num_used_blocks = self._engine.blocks.num_touched_blocks
        while wait and self._commands.empty() and self._tidy(num_used_blocks):
            pass
        if wait:
            with self._cores.engines.rest():
                commands.append(self._commands.get())
        while not self._commands.empty():  # nobody else takes any
            commands.append(self._commands.get())
        return commands

    def _take_stats(self) -> BackendStats:
        engine, prefixes = self._engine, self._prefixes
        num_held = prefixes.num_held if prefixes else 0
        return BackendStats(
            num_running=len(engine.scheduler.running),
            num_waiting=len(engine.scheduler.waiting) + num_held,
            num_held=num_held,
            stored_prefixes=prefixes.stats if prefixes else StoredPrefixStats(),
            counters=replace(engine.counters),
            block_size=engine.blocks.block_size,
            num_blocks=engine.blocks.num_blocks,
            num_free_blocks=engine.blocks.num_free_blocks,
        )

    def _call(self, function: Callable[[], None]) -> None:
        """Calls a function on the engine's thread."""
        self._commands.put(EngineCall(function))

    async def _call_and_wait(self, function: Callable[[], None]) -> None:
        """Calls a function on the engine's thread, between two steps, and returns afterwards.

        Raises:
            BackendUnavailable: the engine ends before.
        """
        done = asyncio.Event()

        def call() -> None:
            function()
            self._link.call(done.set)

        self._call(call)
        waiting = [asyncio.ensure_future(event.wait()) for event in (done, self._link.stopped)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if not done.is_set():
            raise BackendUnavailable("the engine has ended")

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        self._link.call(self._link.loop.call_later, seconds, self._call, function)
