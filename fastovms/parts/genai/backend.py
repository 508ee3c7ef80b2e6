"""The backend that controls the process of OpenVINO GenAI's pipeline."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Final

from fastovms.backend import OutputCallback
from fastovms.backend_stats import BackendStats
from fastovms.backends.engine_thread import (
    Abort,
    Close,
    Command,
    LoopLink,
    RequestsInFlight,
    StepReport,
    Submit,
    ThreadSemaphore,
    check_length,
    fit_cache,
)
from fastovms.backends.model_files import Comparison, NotComparable
from fastovms.backends.model_task import graph_file, weights_file
from fastovms.backends.processes import ChildProcess, WorkerFailed, receive, send
from fastovms.config import EngineConfig
from fastovms.engine.model.devices import is_npu
from fastovms.errors import (
    BackendUnavailable,
    ConfigurationError,
    EngineFailed,
    InvalidField,
    RequestError,
)
from fastovms.params import FinishReason, GenerationRequest, Grammar, ModelInfo, SamplingParams
from fastovms.parts.genai.messages import EncodingImages, LoadPipeline, PipelineLoaded
from fastovms.parts.genai.support import (
    DraftSource,
    check_grammar,
    check_salt,
    check_supported,
    has_prefix_cache,
)
from fastovms.parts.grammars.trials import (
    LANE_SECONDS,
    GuardedGrammars,
    StartTrial,
    Verdict,
    digest_of,
    lane_trial,
)
from fastovms.telemetry.log_format import form_in_use, level_in_use

logger = logging.getLogger(__name__)


_PROCESS: Final = "fastovms.parts.genai.comparison_process"


def pipeline_comparison(model_dir: Path, model: ModelInfo) -> Comparison:
    """Returns the comparison of the pipeline's results with those of the model's exported graph."""
    graph, weights = graph_file(model_dir), weights_file(model_dir)
    return Comparison(
        "pipeline",
        "OpenVINO GenAI's pipeline",
        (graph, weights, *_embeddings(model_dir, model)),
        partial(_difference, model_dir, model),
        weights_size=weights.stat().st_size,
        version=version("openvino-genai"),
    )


def _embeddings(model_dir: Path, model: ModelInfo) -> list[Path]:
    """Returns the embedding graph, for a model whose main graph has no token input; otherwise an
    empty list."""
    if not model.takes_images:
        return []
    return [model_dir / f"openvino_text_embeddings_model.{ending}" for ending in ("xml", "bin")]


def _difference(model_dir: Path, model: ModelInfo) -> float:
    """Returns the largest difference of log probabilities between pipeline and exported graph.
    Raises NotComparable if the two cannot be compared; RuntimeError if the pipeline cannot compute
    the text of the check, in which case every request would fail."""
    process = ChildProcess(_PROCESS)
    answer = process.ask((model_dir, model), "the process of the check")
    process.close()
    if isinstance(answer, WorkerFailed):
        # The system ran out of memory, so the comparison has no result.
        if "SIGKILL" in answer.reason:
            raise NotComparable(answer.reason)
        raise RuntimeError(answer.reason)
    if isinstance(answer, str):
        raise NotComparable(answer)
    return float(answer)


_PIPELINE_SECONDS: Final = (0.5, 1.0, 2.0)
"""CPU seconds that the pipeline's compiler has in each lane for a grammar and one token generated
with it."""

_MAX_ACCEPTED: Final = 4096
"""The maximum number of accepted grammars that are remembered, at 32 bytes each."""


def _start_pipeline(seconds: float) -> ChildProcess:
    return ChildProcess("fastovms.parts.genai.grammar_trial", str(seconds))


def guard_pipeline(
    start_compiler: StartTrial | None, *, start_pipeline: StartTrial = _start_pipeline
) -> GuardedGrammars:
    """Returns the guard that tries each grammar before the pipeline gets it: all compilers must
    accept the grammar.

    Args:
        start_compiler: starts the trial processes of the paged engine's compiler, which come first
            because this compiler has clearer errors and limits nesting; None = not used.
        start_pipeline: starts the trial processes of the pipeline's compiler.
    """
    lanes = [[lane_trial(start_pipeline, seconds)] for seconds in _PIPELINE_SECONDS]
    if start_compiler is not None:
        for lane, seconds in zip(lanes, LANE_SECONDS, strict=True):
            lane.insert(0, lane_trial(start_compiler, seconds))
    return GuardedGrammars(_AcceptedGrammars(), lanes)


class _AcceptedGrammars:
    """The accepted grammars. Thread-safe."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def find(self, grammar: Grammar) -> Grammar | None:
        digest = digest_of(grammar)
        with self._lock:
            if digest not in self._digests:
                return None
            self._digests.move_to_end(digest)
        return grammar

    def keep(self, grammar: Grammar, verdict: Verdict) -> Grammar:
        with self._lock:
            self._digests[digest_of(grammar)] = None
            if len(self._digests) > _MAX_ACCEPTED:
                self._digests.popitem(last=False)
        return grammar


_CLOSE_TIMEOUT: Final = 10.0
"""Seconds to wait for the running step when the backend is closed."""

_MAX_UNDELIVERED_STEPS: Final = 8
"""The maximum number of steps that wait for the event loop; until they are delivered, no more are
read from the process."""

_ENCODING_ALLOWANCE: Final = 60.0
"""Seconds that a step may take longer for each image after the first, because the process cannot
report progress while it encodes the images of one request. `--engine-timeout` covers the first
image."""


class GenaiBackend:
    """Implements `GenerationBackend` with a `worker` process.

    Two threads communicate with the process: one writes commands, which is slow for images; the
    other reads the results of each step and passes them to the event loop.

    Args:
        peer: the process with the loaded model.
        stats: the initial statistics.
    """

    def __init__(
        self,
        peer: ChildProcess,
        model: ModelInfo,
        config: EngineConfig,
        grammars: GuardedGrammars,
        clock: Callable[[], float] = time.perf_counter,
        stats: BackendStats | None = None,
    ) -> None:
        self._peer = peer
        self._model = model
        self._config = config
        self._assistance = DraftSource.of(config)
        self._grammars = grammars
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._undelivered = ThreadSemaphore(_MAX_UNDELIVERED_STEPS)
        self._link = LoopLink()
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
        """Starts the process and waits until the model is loaded. Takes seconds or minutes, so call
        it in a thread. Raises ConfigurationError if the pipeline or the device cannot run the
        model.

        Args:
            available: free memory in bytes, for a KV cache of automatic size.
        """
        logger.info("compiling the model for %s with the genai pipeline", config.device)
        process = ChildProcess("fastovms.parts.genai.worker")
        load = LoadPipeline(model_dir, model, config, available, level_in_use(), form_in_use())
        what = f"cannot load the model in {model_dir}: the pipeline's process"
        answer = process.ask(load, what)
        if isinstance(answer, PipelineLoaded):
            if config.enable_prefix_caching and not has_prefix_cache(config):
                logger.warning("genai: the prefix cache is not used together with a draft model")
            model = fit_cache(model, answer.model.max_model_len)
            return cls(process, model, config, grammars, stats=answer.stats)
        process.close()
        raise ConfigurationError(answer.reason)

    # Backend

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def failure(self) -> str | None:
        return self._failure

    def start(self) -> None:
        self._link.start()
        writer = threading.Thread(target=self._write, name="genai-write", daemon=True)
        writer.start()
        self._grammars.start()
        threading.Thread(target=self._read, args=[writer], name="genai-read", daemon=True).start()

    async def warmed_up(self) -> None:
        """Returns at once, because loading includes the slow first steps."""

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        check_grammar(grammar)
        return await self._grammars.compile(grammar, client)

    def check(self, params: SamplingParams) -> None:
        check_supported(params, self._assistance, self._config.max_num_seqs)
        if params.logprobs is not None and is_npu(self._config.device.upper()):
            raise InvalidField.about("logprobs", "are not supported on an NPU")

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        if self._failure is not None:
            raise EngineFailed(f"the engine has failed: {self._failure}")
        if not self._link.is_started or self._closing:
            raise BackendUnavailable("the server is not ready to generate")
        check_length(request, self._model)
        if request.generated_token_ids:
            raise RequestError("the genai backend cannot resume an interrupted answer")
        self.check(request.params)
        check_salt(request.cache_salt, enable_prefix_caching=has_prefix_cache(self._config))
        self._requests.add(request, on_output)
        # `ends_text` is a function, which cannot be sent to a process.
        self._commands.put(Submit(replace(request, ends_text=None)))

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
        if not self._link.is_started or self._closing:
            return
        self._closing = True
        self._grammars.close()
        self._commands.put(Close())
        self._requests.end_all(FinishReason.ABORT, None)
        if self._failure is None and not await self._link.wait(_CLOSE_TIMEOUT):
            logger.error(
                "genai: a step still runs %g s after the shutdown began; its process is killed",
                _CLOSE_TIMEOUT,
            )
            self._peer.kill()

    # Threads

    def _write(self) -> None:
        try:
            while (command := self._commands.get()) is not None:
                send(self._peer.connection, command)
                del command  # release the images before the next wait
        except (OSError, ValueError):
            logger.debug("genai: the pipeline accepts no more commands")

    def _read(self, writer: threading.Thread) -> None:
        reason = ""
        try:
            while True:
                message = receive(self._peer.connection)
                if isinstance(message, WorkerFailed):
                    reason = message.reason
                    break
                if isinstance(message, EncodingImages):
                    self._link.call(self._allow_encoding, message.num_images)
                    continue
                self._undelivered.acquire()
                self._link.call(self._deliver, message)
        except (EOFError, OSError):
            logger.debug("genai: the pipeline closed its connection")
        ending = f"the pipeline's process {self._peer.wait()}"
        self._commands.put(None)
        writer.join()
        self._peer.connection.close()
        self._link.call(self._on_end, reason or ending)

    # Methods that run in the event loop

    def _allow_encoding(self, num_images: int) -> None:
        self._step_allowance = (num_images - 1) * _ENCODING_ALLOWANCE

    def _deliver(self, step: StepReport) -> None:
        self._step_allowance = 0.0
        self._undelivered.release()
        self._requests.deliver(step)

    def _on_end(self, reason: str) -> None:
        if not self._closing:
            self.fail(reason)
        self._link.stopped.set()
