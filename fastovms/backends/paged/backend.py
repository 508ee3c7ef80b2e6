"""The backend of this project's own engine: serves requests with a loaded model."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self

from fastovms.backend import OutputCallback
from fastovms.backend_stats import BackendStats, GrammarStats
from fastovms.backends.engine_thread import (
    Abort,
    ActiveEngines,
    Close,
    Command,
    ComputeTurn,
    EngineCall,
    LoopLink,
    RequestsInFlight,
    SteppedEngine,
    StepReport,
    Submit,
    ThreadSemaphore,
    check_length,
    fit_cache,
    run_engine,
    start_thread,
)
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.extensions import EngineExtensions
from fastovms.engine.model.devices import (
    GIB,
    MIB,
    available_memory,
    format_size,
    log_lack,
    num_cache_blocks,
    reason_of,
)
from fastovms.engine.model.model import Model
from fastovms.engine.row_functions import forget_compiler
from fastovms.errors import BackendUnavailable, ConfigurationError, EngineFailed, InvalidField
from fastovms.params import FinishReason, GenerationRequest, Grammar, ModelInfo, SamplingParams
from fastovms.system.memory import find_trim

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SharedCores:
    """State shared by the models of one process so that they do not compute at the same time.

    Attributes:
        engines: counts the working engines; watched by `turn`.
        turn: alternates engine steps and encoder slices.
        leaving: threads that still prepare kernels for a closed backend.
    """

    engines: ActiveEngines
    turn: ComputeTurn
    leaving: list[threading.Thread] = field(default_factory=list, kw_only=True)

    @classmethod
    def create(cls) -> Self:
        """Returns new shared state, for the models of a process."""
        engines = ActiveEngines()
        return cls(engines, ComputeTurn(engines))

    def wait_until_left(self) -> None:
        """Waits for the threads that keep closed models in memory. Each finishes its current piece
        of work first."""
        while self.leaving:
            self.leaving.pop().join()


class AdditionalCache(NamedTuple):
    """A second KV cache with as many tokens as the model's, which shares its memory budget.
    `allocate` reserves it for a number of tokens."""

    bytes_per_token: float
    allocate: Callable[[int], None]


def reserve_cache(
    paged_model: Model,
    further: AdditionalCache | None,
    model: ModelInfo,
    config: EngineConfig,
    available: int | None,
) -> int:
    """Reserves the KV cache of a model, and a further one for the same number of tokens. Returns
    the number of blocks of the first cache. Raises ConfigurationError if not even one block fits.

    Args:
        available: free memory in bytes, for a cache of automatic size; None = ask the system.
    """
    if available is None:
        available = available_memory()
    block_size = paged_model.block_size
    bytes_per_block = paged_model.bytes_per_block
    states = paged_model.states
    if further is not None:
        bytes_per_block += math.ceil(block_size * further.bytes_per_token)
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
        wanted = f"of {config.cache_size:g} GiB" if config.cache_size else "of automatic size"
        raise ConfigurationError(
            f"a KV cache {wanted} holds no block of {bytes_per_block} bytes in the "
            f"{format_size(available)} that are free: raise --cache-size, or the memory or its "
            "limits (cgroup, ulimit -v)"
        )
    size = num_blocks * bytes_per_block
    if num_blocks < max_useful_blocks and available < int(config.cache_size * GIB):
        log_lack(config.cache_size, size)
    try:
        paged_model.allocate_cache(num_blocks)
        if further is not None:
            further.allocate(num_blocks * block_size)
    except MemoryError:
        raise ConfigurationError(
            f"the KV cache of {size / GIB:.3g} GiB cannot be reserved: lower --cache-size, or "
            "raise the limit of the address space (ulimit -v)"
        ) from None
    logger.info(
        "KV cache: %d tokens (%d blocks of %d)", num_blocks * block_size, num_blocks, block_size
    )
    if states is not None:
        logger.debug(
            "KV cache: states take %.3g of the %.3g MiB of a block, and %.3g "
            "MiB outside the blocks; cached prefixes are multiples of %d tokens",
            states.num_bytes / MIB,
            paged_model.bytes_per_block / MIB,
            states.extra_bytes / MIB,
            block_size,
        )
    if num_blocks == max_useful_blocks and config.cache_size:
        logger.info(
            "KV cache: %.3g of %.3g GiB are used, because %d sequences of %d tokens need no more",
            size / GIB,
            config.cache_size,
            max_num_seqs,
            model.max_model_len,
        )
    return num_blocks


class IdleMemory:
    """Manages memory while the engine is idle: commits cache memory in advance, then releases
    resident pages of mapped model files. The files are released again whenever the used part of the
    cache has doubled, because OpenVINO reads weights again for new step sizes."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._next_look = 0

    def tidy(self, num_used_blocks: int) -> bool:
        """Does one piece of work, which takes some milliseconds. Returns whether there was any.
        `num_used_blocks` is the number of cache blocks that have been written."""
        if self._model.commit_ahead(num_used_blocks):
            return True
        if num_used_blocks < self._next_look:
            return False
        self._next_look = max(1, 2 * num_used_blocks)
        self._model.forget_files()
        forget_compiler()
        return True


_CLOSE_TIMEOUT = 10.0
"""Seconds to wait for the running step when the backend is closed."""

_MAX_WAIT_FOR_REST = 5.0
"""The default maximum seconds for which a piece of preparation waits for idle engines."""

_MAX_UNDELIVERED_STEPS = 8
"""The maximum number of steps by which the engine may be ahead of the event loop. Further tokens
could not be sent yet."""


class WaitForRequests(Protocol):
    """Delays optional work that makes a model faster, so that requests go first."""

    def __call__(self, delay: float, patience: float = _MAX_WAIT_FOR_REST, /) -> bool:
        """Waits for `delay` seconds, then until no engine works, but for at most `patience` more
        seconds. Returns whether the backend is still open."""


class BackendExtension:
    """The interface by which a part extends a paged backend; the methods of this base class do
    nothing. Each method is called once, on the event loop's thread, unless its docstring says
    otherwise."""

    def start(self, backend: PagedBackend) -> None:
        """Called before the engine's thread starts."""

    def wrap(self, engine: SteppedEngine) -> SteppedEngine:
        """Returns the engine to use instead of `engine`."""
        return engine

    def begin_request(self, request: GenerationRequest) -> Callable[[], None] | None:
        """Called for each request. Returns a callback for its end, or None. Raises
        BackendUnavailable if the request cannot be computed any more."""
        return None

    def add_stats(self, stats: BackendStats) -> BackendStats:
        """Returns the statistics with this part's added; called after each step, on the engine's
        thread."""
        return stats

    def prepare(self, may_go_on: WaitForRequests) -> None:
        """Makes the model faster while it serves requests. Runs in a separate thread once the
        engine is warm, after the `prepare` of earlier extensions. Must call `may_go_on` before each
        piece of work, and return if that returns False."""

    def end(self, *, is_in_order: bool) -> None:
        """Called on the engine's thread at its end. `is_in_order` is False if the engine has
        failed."""

    def close(self) -> None:
        """Called when the backend is closed, before the engine's thread has ended."""


class Grammars(ABC):
    """Compiles and checks grammars for the engine."""

    @property
    @abstractmethod
    def stats(self) -> GrammarStats:
        """The statistics, for metrics."""

    @abstractmethod
    def start(self) -> None:
        """Called before the first grammar is compiled."""

    @abstractmethod
    async def compile(self, grammar: Grammar, client: str) -> Grammar:
        """See `GenerationBackend.compile_grammar`."""

    @abstractmethod
    def close(self) -> None:
        """Ends the work begun by `start`."""


class BackendParts(NamedTuple):
    """The parts of a backend in addition to its model.

    Attributes:
        engine: the extensions of the engine.
        grammars: compiles grammars; None = grammars are refused.
        extensions: the extensions of the backend, in the order in which they are called.
        further_cache: a second KV cache that shares the memory budget; None = none.
        cores: the cores shared with the other models; None = not shared.
    """

    engine: EngineExtensions | None = None
    grammars: Grammars | None = None
    extensions: Sequence[BackendExtension] = ()
    further_cache: AdditionalCache | None = None
    cores: SharedCores | None = None
    clock: Callable[[], float] = time.perf_counter


class PagedBackend:
    """Implements `GenerationBackend` with `Engine`.

    The engine thread receives commands, runs steps, and passes each step's outputs to the loop with
    one `call_soon_threadsafe`. While the loop decodes them, the thread runs the next inference
    without the GIL. Without work it manages memory, then sleeps on the command queue, so that
    tuning may run.

    Attributes:
        extensions: the extensions of parts.
    """

    def __init__(
        self,
        engine: Engine,
        model: ModelInfo,
        config: EngineConfig,
        parts: BackendParts,
        tidy: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`tidy` manages the model's memory, given the number of used cache blocks; see
        `IdleMemory`."""
        self.engine = engine
        self._stepped: SteppedEngine = engine
        self._clock = parts.clock
        self._tidy = tidy
        self._cores = parts.cores or SharedCores.create()
        self._grammars = parts.grammars
        self.extensions = tuple(parts.extensions)
        self._model = model
        self._config = config
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._undelivered = ThreadSemaphore(_MAX_UNDELIVERED_STEPS)
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
        self._preparing: threading.Thread | None = None

    @classmethod
    def from_model(
        cls,
        paged_model: Model,
        model: ModelInfo,
        config: EngineConfig,
        parts: BackendParts | None = None,
        *,
        available: int | None = None,
    ) -> Self:
        """Reserves the cache of a loaded model, and limits its context to what the cache can hold.

        Args:
            available: free memory in bytes, for a cache of automatic size; None = ask the system.
        """
        parts = parts or BackendParts()
        num_blocks = reserve_cache(paged_model, parts.further_cache, model, config, available)
        model = fit_cache(model, num_blocks * paged_model.block_size)
        engine = Engine(
            paged_model,
            config,
            num_blocks=num_blocks,
            max_model_len=model.max_model_len,
            extensions=parts.engine,
        )
        return cls(engine, model, config, parts, IdleMemory(paged_model).tidy)

    # Backend

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def failure(self) -> str | None:
        return self._failure

    def start(self) -> None:
        self._link.start()
        for extension in self.extensions:
            extension.start(self)
            self._stepped = extension.wrap(self._stepped)
        self._cores.engines.begin()
        start_thread(self._run, name="engine")
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
        self.engine.validate(request)
        held = ExitStack()
        try:
            for extension in self.extensions:
                release = extension.begin_request(request)
                if release is not None:
                    held.callback(release)
            self._requests.add(request, on_output, held.close)
        except BaseException:
            held.close()
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
        for extension in self.extensions:
            extension.close()
        if self._grammars is not None:
            self._grammars.close()
        self._requests.end_all(FinishReason.ABORT, None)
        if self._failure is None and not await self._link.wait(_CLOSE_TIMEOUT):
            logger.error(
                "engine: a step still runs %g s after the shutdown began; it is abandoned",
                _CLOSE_TIMEOUT,
            )
        if self._preparing is not None:
            self._cores.leaving.append(self._preparing)

    # Event loop

    def _deliver(self, step: StepReport) -> None:
        self._undelivered.release()
        self._requests.deliver(step)

    # Engine thread

    def _run(self) -> None:
        is_in_order = False
        try:
            self.engine.warm_up()
            self._link.call(self._warm.set)
            if self.extensions:
                try:
                    self._preparing = start_thread(self._prepare, name="prepare")
                except RuntimeError as error:
                    logger.warning(
                        "engine: no thread for preparing kernels can be started: %s", error
                    )
            run_engine(
                self._stepped,
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
        except BaseException as error:  # a panic of Rust is a BaseException
            logger.exception("engine: failed")
            self._link.call(self.fail, f"{type(error).__name__}: {reason_of(error)}")
        finally:
            self._cores.engines.end()
            for extension in self.extensions:
                extension.end(is_in_order=is_in_order)
            self._link.call(self._warm.set)
            self._link.call(self._link.stopped.set)

    def _prepare(self) -> None:
        for extension in self.extensions:
            extension.prepare(self._may_go_on)
        if not self._closing.is_set():
            forget_compiler()
            find_trim()()

    def _may_go_on(self, delay: float, patience: float = _MAX_WAIT_FOR_REST, /) -> bool:
        """See `WaitForRequests`."""
        if self._closing.wait(delay):
            return False
        self._cores.engines.wait_for_rest(patience)
        return not self._closing.is_set()

    def _publish(self, step: StepReport) -> None:
        self._undelivered.acquire()
        self._link.call(self._deliver, step)

    def _receive(self, wait: bool) -> list[Command]:
        commands: list[Command] = []
        num_used_blocks = self.engine.blocks.num_touched_blocks
        while wait and self._commands.empty() and self._tidy(num_used_blocks):
            pass
        if wait:
            with self._cores.engines.rest():
                commands.append(self._commands.get())
        while not self._commands.empty():  # this thread is the only reader
            commands.append(self._commands.get())
        return commands

    def _take_stats(self) -> BackendStats:
        engine = self.engine
        stats = BackendStats(
            num_running=len(engine.scheduler.running),
            num_waiting=len(engine.scheduler.waiting),
            counters=replace(engine.counters),
            block_size=engine.blocks.block_size,
            num_blocks=engine.blocks.num_blocks,
            num_free_blocks=engine.blocks.num_free_blocks,
            kv_cache_bytes=engine.blocks.num_touched_blocks * engine.bytes_per_block,
        )
        for extension in self.extensions:
            stats = extension.add_stats(stats)
        return stats

    def call(self, function: Callable[[], None]) -> None:
        """Calls a function on the engine's thread."""
        self._commands.put(EngineCall(function))

    async def call_and_wait(self, function: Callable[[], None]) -> None:
        """Calls a function on the engine's thread, between two steps, and returns afterwards.
        Raises BackendUnavailable if the engine ends first."""
        done = asyncio.Event()

        def call() -> None:
            function()
            self._link.call(done.set)

        self.call(call)
        waiting = [asyncio.ensure_future(event.wait()) for event in (done, self._link.stopped)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if not done.is_set():
            raise BackendUnavailable("the engine has ended")

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Calls a function on the engine's thread after this number of seconds."""
        self._link.call(self._link.loop.call_later, seconds, self.call, function)
