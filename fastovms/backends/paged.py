"""The engine on a thread of its own, handed whole batches of tokens to the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fastovms.backends.base import BackendStats, OutputCallback
from fastovms.backends.draft import load_draft_model
from fastovms.backends.vocabulary import fit_vocabulary, load_grammar_compiler
from fastovms.backends.window import fit_window
from fastovms.config import EngineConfig
from fastovms.engine.draft import DraftModel
from fastovms.engine.engine import Engine, EngineOutput
from fastovms.engine.grammar import GrammarCompiler
from fastovms.engine.memory import available_memory, num_cache_blocks
from fastovms.engine.model import Model, PagedModel
from fastovms.errors import (
    BackendUnavailable,
    ConfigurationError,
    EngineFailed,
    InvalidField,
    Overloaded,
    RequestError,
)
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    Grammar,
    ModelInfo,
)

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 10.0
"""Seconds for the step that runs when the backend is closed."""

_MAX_UNDELIVERED_STEPS = 8
"""Steps the engine may be ahead of the loop. More would only queue tokens nobody can send yet."""


@dataclass(frozen=True, slots=True)
class _Submit:
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str
    index: int | None


@dataclass(frozen=True, slots=True)
class _Close:
    pass


_Command = _Submit | _Abort | _Close


@dataclass(slots=True)
class _InFlight:
    """A request as the loop sees it.

    Attributes:
        on_output: whom to tell.
        unfinished: the samples that have not finished.
        submitted_at: None once it has left the queue.
        queue_time: how long it was there; None until known, and once it was told.
    """

    on_output: OutputCallback
    unfinished: set[int]
    submitted_at: float | None
    queue_time: float | None = None


class _Step(NamedTuple):
    """What the engine thread tells the loop.

    Attributes:
        admitted: the requests that left the queue for this step.
        num_received: samples submitted that the engine has got to know.
    """

    outputs: list[EngineOutput]
    admitted: list[str]
    started_at: float
    stats: BackendStats
    num_received: int


class PagedBackend:
    """Implements `Backend` over `Engine`.

    The engine thread receives commands, steps, and hands over each step's outputs with one
    `call_soon_threadsafe`. While the loop turns them into text, the thread is inside the next
    inference with the GIL released. When there is no work it sleeps on the command queue.
    """

    def __init__(
        self,
        engine: Engine,
        model: ModelInfo,
        config: EngineConfig,
        grammars: GrammarCompiler | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._grammars = grammars
        self._model = model
        self._config = config
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._undelivered = threading.Semaphore(_MAX_UNDELIVERED_STEPS)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._in_flight: dict[str, _InFlight] = {}
        self._failure: str | None = None
        self._closing = False
        self._stats = BackendStats()
        self._num_submitted = 0
        self._num_received = 0

    @classmethod
    def load(cls, model_dir: Path, model: ModelInfo, config: EngineConfig) -> PagedBackend:
        """For a model that has the machine to itself; see `compile`."""
        return cls.compile(model_dir, model, config)(available_memory())

    @classmethod
    def compile(
        cls, model_dir: Path, model: ModelInfo, config: EngineConfig
    ) -> Callable[[int], PagedBackend]:
        """Compiles the model, and its draft model if there is one. Takes seconds: call it off the
        loop.

        Returns:
            What reserves the caches, given how many bytes of free memory the model may count as
            its own, which is known when all models are compiled. Raises ConfigurationError when
            no cache block fits.

        Raises:
            ConfigurationError: the model or the device cannot do it.
        """
        paged_model = PagedModel.load(
            model_dir, device=config.device, properties=config.plugin_config
        )
        model = fit_vocabulary(model, paged_model.vocab_size)
        model = fit_window(model, is_applied=paged_model.applies_sliding_window)
        draft_model = None
        if config.draft_model is not None:
            draft_model = load_draft_model(config.draft_model, model_dir, model, config)
        grammars = load_grammar_compiler(model_dir, model)

        def reserve(available: int) -> PagedBackend:
            if paged_model.is_on_gpu:
                available = paged_model.available_memory()
            return cls.over(paged_model, model, config, grammars, draft_model, available=available)

        return reserve

    @classmethod
    def over(
        cls,
        paged_model: Model,
        model: ModelInfo,
        config: EngineConfig,
        grammars: GrammarCompiler | None = None,
        draft_model: DraftModel | None = None,
        *,
        available: int | None = None,
    ) -> PagedBackend:
        """Reserves the cache of a loaded model; its context shrinks to what the cache can hold.
        The draft model's cache holds as many tokens, and both share the memory.

        Args:
            available: bytes of memory that a cache of automatic size takes its share of; None =
                all that is free.
        """
        block_size = paged_model.block_size
        bytes_per_block = paged_model.bytes_per_block
        if draft_model is not None:
            bytes_per_block += math.ceil(block_size * draft_model.bytes_per_token)
        num_blocks = num_cache_blocks(
            config.cache_size,
            bytes_per_block=bytes_per_block,
            max_useful_blocks=config.max_num_seqs * -(-model.max_model_len // block_size),
            available=available_memory() if available is None else available,
        )
        if num_blocks < 1:
            size = f"of {config.cache_size:g} GB" if config.cache_size else "in the free memory"
            raise ConfigurationError(
                f"a KV cache {size} holds no block ({bytes_per_block} bytes each): raise "
                "--cache-size"
            )
        paged_model.allocate_cache(num_blocks)
        capacity = num_blocks * block_size
        if draft_model is not None:
            draft_model.allocate_cache(capacity)
        logger.info("KV cache: %d blocks of %d tokens", num_blocks, block_size)
        if capacity < model.max_model_len:
            logger.warning(
                "context length reduced from %d to the %d tokens that the KV cache holds",
                model.max_model_len,
                capacity,
            )
            model = replace(model, max_model_len=capacity)
        engine = Engine(
            paged_model,
            config,
            num_blocks=num_blocks,
            max_model_len=model.max_model_len,
            grammars=grammars,
            draft_model=draft_model,
        )
        return cls(engine, model, config, grammars)

    # Backend

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def failure(self) -> str | None:
        return self._failure

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def compile_grammar(self, grammar: Grammar) -> None:
        if self._grammars is None:
            raise InvalidField(
                f"{grammar.param} needs a model with a tokenizer.json", param=grammar.param
            )
        self._grammars.compile(grammar)

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        if self._failure is not None:
            raise EngineFailed(f"the engine has failed: {self._failure}")
        if self._thread is None or self._closing:
            raise BackendUnavailable("the server is not ready to generate")
        self._check_length(request)
        self._engine.validate(request)
        if self._num_waiting >= self._config.max_num_queued_requests:
            raise Overloaded(
                f"{self._num_waiting} requests are waiting, which is the limit; try again later"
            )
        assert request.request_id not in self._in_flight, "request ids are unique"
        self._in_flight[request.request_id] = _InFlight(
            on_output, set(range(request.params.n)), self._clock()
        )
        self._num_submitted += request.params.n
        self._commands.put(_Submit(request))

    def abort(self, request_id: str, index: int | None = None) -> None:
        in_flight = self._in_flight.get(request_id)
        if in_flight is None:
            return
        if index is not None:
            in_flight.unfinished.discard(index)
        if index is None or not in_flight.unfinished:
            del self._in_flight[request_id]
        self._commands.put(_Abort(request_id, index))

    def stats(self) -> BackendStats:
        return replace(self._stats, num_waiting=self._num_waiting)

    def fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
            self._end_all(FinishReason.ERROR, reason)

    async def close(self) -> None:
        if self._thread is None or self._closing:
            return
        self._closing = True
        self._commands.put(_Close())
        self._end_all(FinishReason.ABORT, None)
        assert self._stopped is not None
        if self._failure is None:  # a thread that hangs is not waited for
            await self._wait_for_thread(self._stopped)

    # Event loop

    @property
    def _num_waiting(self) -> int:
        """Samples that do not run yet, those still on their way to the thread included."""
        return self._stats.num_waiting + self._num_submitted - self._num_received

    async def _wait_for_thread(self, stopped: asyncio.Future[None]) -> None:
        """A step that hangs must not keep the process from ending."""
        done, _ = await asyncio.wait([stopped], timeout=_CLOSE_TIMEOUT)
        if not done:
            logger.error("the engine is still in a step after %g s: leaving it", _CLOSE_TIMEOUT)

    def _check_length(self, request: GenerationRequest) -> None:
        num_tokens = len(request.prompt_token_ids)
        if num_tokens >= self._model.max_model_len:
            raise RequestError(
                f"the prompt has {num_tokens} tokens, which leaves no room to generate in the "
                f"context of {self._model.max_model_len} tokens",
                param="prompt",
                code="context_length_exceeded",
            )

    def _deliver(self, step: _Step) -> None:
        self._stats = step.stats
        self._num_received = step.num_received
        self._undelivered.release()
        for request_id in step.admitted:
            in_flight = self._in_flight.get(request_id)
            if in_flight is not None and in_flight.submitted_at is not None:
                in_flight.queue_time = step.started_at - in_flight.submitted_at
                in_flight.submitted_at = None
        for request_id, output in step.outputs:
            in_flight = self._in_flight.get(request_id)
            if in_flight is not None and output.index in in_flight.unfinished:
                output.queue_time, in_flight.queue_time = in_flight.queue_time, None
                self._tell(request_id, in_flight, output)

    def _tell(self, request_id: str, in_flight: _InFlight, output: GenerationOutput) -> None:
        if output.finish_reason is not None:
            in_flight.unfinished.discard(output.index)
            if not in_flight.unfinished:
                del self._in_flight[request_id]
        try:
            in_flight.on_output(output)
        except Exception:
            # One request's fault must not cost the others their tokens.
            logger.exception("request %s failed on its output", request_id)
            self.abort(request_id)

    def _end_all(self, reason: FinishReason, error: str | None) -> None:
        for request_id in list(self._in_flight):
            self._end(request_id, reason, error)

    def _end(self, request_id: str, reason: FinishReason, error: str | None) -> None:
        in_flight = self._in_flight.get(request_id)
        if in_flight is not None:
            for index in sorted(in_flight.unfinished):
                output = GenerationOutput(index, (), reason, 0, error=error)
                self._tell(request_id, in_flight, output)

    # Engine thread

    def _run(self) -> None:
        assert self._loop is not None
        assert self._stopped is not None
        num_received = 0
        try:
            while True:
                commands = self._receive()
                for command in commands:
                    match command:
                        case _Submit(request):
                            num_received += request.params.n
                            self._add(request)
                        case _Abort(request_id, index):
                            self._engine.abort(request_id, index)
                        case _Close():
                            return
                started_at = self._clock()
                outputs, admitted = [], []
                if self._engine.has_work:
                    outputs = self._engine.step()
                    admitted = self._engine.admitted
                self._undelivered.acquire()
                step = _Step(outputs, admitted, started_at, self._take_stats(), num_received)
                self._call_loop(self._deliver, step)
        except Exception as error:
            logger.exception("the engine has failed")
            self._call_loop(self.fail, f"{type(error).__name__}: {error}")
        finally:
            self._call_loop(_resolve, self._stopped)

    def _add(self, request: GenerationRequest) -> None:
        """A request that cannot even be queued fails alone."""
        try:
            self._engine.add(request)
        except Exception as error:
            logger.exception("request %s failed", request.request_id)
            self._call_loop(self._end, request.request_id, FinishReason.ERROR, str(error))

    def _receive(self) -> list[_Command]:
        """Takes every command there is; waits for one when there is nothing else to do."""
        commands: list[_Command] = []
        if not self._engine.has_work:
            commands.append(self._commands.get())
        while True:
            try:
                commands.append(self._commands.get_nowait())
            except queue.Empty:
                return commands

    def _take_stats(self) -> BackendStats:
        engine, scheduler = self._engine, self._engine.scheduler
        return BackendStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_blocks=engine.blocks.num_blocks,
            num_free_blocks=engine.blocks.num_free_blocks,
            num_preemptions=scheduler.num_preemptions,
            num_prefix_cache_queries=scheduler.num_prefix_cache_queries,
            num_prefix_cache_hits=scheduler.num_prefix_cache_hits,
            num_prompt_tokens=engine.num_prompt_tokens,
            num_generated_tokens=engine.num_generated_tokens,
            num_draft_tokens=engine.drafting.num_draft_tokens,
            num_accepted_tokens=engine.drafting.num_accepted_tokens,
            num_steps=engine.num_steps,
        )

    def _call_loop(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            logger.debug("the event loop has closed before the engine")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
