"""Implements `GenerationBackend` by OpenVINO GenAI's pipeline: starts its process, talks to it, and
ends its requests when it dies."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fastovms.backend import OutputCallback
from fastovms.backend_stats import BackendStats
from fastovms.backends.engine_thread.engine_loop import Abort, Close, Command, Submit
from fastovms.backends.engine_thread.in_flight import RequestsInFlight, StepReport, check_length
from fastovms.backends.engine_thread.permits import Permits
from fastovms.backends.genai.support import (
    Assistance,
    check_grammar,
    check_salt,
    check_supported,
    has_prefix_cache,
)
from fastovms.backends.genai.worker_messages import (
    EncodingImages,
    LoadPipeline,
    PipelineLoaded,
    WorkerFailed,
)
from fastovms.backends.model_files.context_length import fit_cache
from fastovms.backends.processes.process import ChildProcess, Peer, receive, send
from fastovms.backends.trials.guarded_grammars import GuardedGrammars
from fastovms.config.engine_config import EngineConfig
from fastovms.errors import BackendUnavailable, ConfigurationError, EngineFailed, RequestError
from fastovms.params import FinishReason, GenerationRequest, Grammar, ModelInfo, SamplingParams
from fastovms.telemetry.log_format import form_in_use, level_in_use

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT: Final = 10.0
"""Seconds that the step may take that runs when the backend is closed."""

_MAX_UNDELIVERED_STEPS: Final = 8
"""How many steps may wait for the loop, before nothing more is read of what the process sends."""

_ENCODING_ALLOWANCE: Final = 60.0
"""Seconds that a step may take longer for each image after the first: the process cannot report
progress while it encodes the images of one request. `--engine-timeout` covers the first."""


class GenaiBackend:
    """Implements `GenerationBackend` over a `worker`.

    Two threads talk to the process: one writes, which takes a while where a prompt has images, and
    one reads and hands each step to the loop.

    Args:
        peer: the process, which has loaded the model.
        stats: what it counts before it begins.
    """

    def __init__(
        self,
        peer: Peer,
        model: ModelInfo,
        config: EngineConfig,
        grammars: GuardedGrammars,
        clock: Callable[[], float] = time.perf_counter,
        stats: BackendStats | None = None,
    ) -> None:
        self._peer = peer
        self._model = model
        self._config = config
        self._assistance = Assistance.of(config)
        self._grammars = grammars
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._undelivered = Permits(_MAX_UNDELIVERED_STEPS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._requests = RequestsInFlight(
            max_num_waiting=config.max_num_queued_requests,
            abort=self.abort,
            clock=clock,
            stats=stats,
        )
        self._failure: str | None = None
        self._closing = False
        self._step_allowance = 0.0

    @classmethod
    def load(
        cls,
        model_dir: Path,
        model: ModelInfo,
        config: EngineConfig,
        grammars: GuardedGrammars,
        *,
        available: int,
    ) -> GenaiBackend:
        """Starts the process and waits until it has the model, seconds or minutes: call it off the
        loop.

        Args:
            available: bytes of memory that a KV cache of automatic size takes its share of.

        Raises:
            ConfigurationError: the pipeline or the device cannot do it.
        """
        logger.info("compiling for %s with the genai pipeline", config.device)
        process = ChildProcess("fastovms.backends.genai.worker_main")
        answer: Any
        try:
            level = level_in_use()
            load = LoadPipeline(model_dir, model, config, available, level, form_in_use())
            send(process.connection, load)
            answer = receive(process.connection)
        except (EOFError, ConnectionError):
            process.connection.close()
            answer = WorkerFailed(
                f"cannot load the model in {model_dir}: the pipeline's process {process.wait()}"
            )
        if isinstance(answer, PipelineLoaded):
            if config.enable_prefix_caching and not has_prefix_cache(config):
                logger.warning("the genai backend has no prefix cache beside a draft model")
            model = fit_cache(model, answer.model.max_model_len)
            return cls(process, model, config, grammars, stats=answer.stats)
        process.connection.close()
        process.wait()
        raise ConfigurationError(answer.reason)

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
        writer = threading.Thread(target=self._write, name="genai-write", daemon=True)
        writer.start()
        self._grammars.start()
        threading.Thread(target=self._read, args=[writer], name="genai-read", daemon=True).start()

    async def warmed_up(self) -> None:
        """Returns at once: loading computes the first, slow steps."""

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        check_grammar(grammar)
        return await self._grammars.compile(grammar, client)

    def check(self, params: SamplingParams) -> None:
        check_supported(params, self._assistance, self._config.max_num_seqs)

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        if self._failure is not None:
            raise EngineFailed(f"the engine has failed: {self._failure}")
        if self._loop is None or self._closing:
            raise BackendUnavailable("the server is not ready to generate")
        check_length(request, self._model)
        if request.generated_token_ids:
            raise RequestError("the model's backend cannot go on with an answer that was cut off")
        self.check(request.params)
        check_salt(request.cache_salt, enable_prefix_caching=has_prefix_cache(self._config))
        self._requests.add(request, on_output)
        self._commands.put(Submit(replace(request, ends_text=None)))  # functions cannot be sent

    def abort(self, request_id: str, index: int | None = None) -> None:
        if self._requests.discard(request_id, index):
            self._commands.put(Abort(request_id, index))

    def stats(self) -> BackendStats:
        return replace(
            self._requests.stats,
            step_allowance=self._step_allowance,
            grammars=self._grammars.stats,
        )

    def fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
            self._requests.end_all(FinishReason.ERROR, reason)
        self._peer.kill()

    async def close(self) -> None:
        if self._loop is None or self._closing:
            return
        self._closing = True
        self._grammars.close()
        self._commands.put(Close())
        self._requests.end_all(FinishReason.ABORT, None)
        assert self._stopped is not None
        if self._failure is None:
            done, _ = await asyncio.wait([self._stopped], timeout=_CLOSE_TIMEOUT)
            if not done:
                logger.error(
                    "the pipeline is still in a step after %g s: ending it", _CLOSE_TIMEOUT
                )
                self._peer.kill()

    # Threads

    def _write(self) -> None:
        try:
            while (command := self._commands.get()) is not None:
                send(self._peer.connection, command)
                del command  # its images are in memory no longer than they are needed
        except (OSError, ValueError):
            logger.debug("the pipeline takes no more commands")

    def _read(self, writer: threading.Thread) -> None:
        reason = ""
        try:
            while True:
                message = receive(self._peer.connection)
                if isinstance(message, WorkerFailed):
                    reason = message.reason
                    break
                if isinstance(message, EncodingImages):
                    self._call_loop(self._allow_encoding, message.num_images)
                    continue
                self._undelivered.acquire()
                self._call_loop(self._deliver, message)
        except (EOFError, OSError):
            logger.debug("the pipeline has closed its connection")
        ending = f"the pipeline's process {self._peer.wait()}"
        self._commands.put(None)
        writer.join()
        self._peer.connection.close()
        self._call_loop(self._on_end, reason or ending)

    def _call_loop(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            logger.debug("the event loop has closed before the pipeline")

    # Event loop

    def _allow_encoding(self, num_images: int) -> None:
        self._step_allowance = (num_images - 1) * _ENCODING_ALLOWANCE

    def _deliver(self, step: StepReport) -> None:
        self._step_allowance = 0.0
        self._undelivered.release()
        self._requests.deliver(step)

    def _on_end(self, reason: str) -> None:
        assert self._stopped is not None
        if not self._closing:
            self.fail(reason)
        if not self._stopped.done():
            self._stopped.set_result(None)
