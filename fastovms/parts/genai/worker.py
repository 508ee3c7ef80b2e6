"""The process that runs `openvino_genai.ContinuousBatchingPipeline`."""

from __future__ import annotations

import logging
import math
import secrets
import time
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any, Final

import numpy as np
import openvino as ov
import openvino_genai as genai

from fastovms.api.image_parts import image_tag
from fastovms.backend_stats import BackendStats, EngineCounters
from fastovms.backends.engine_thread import Close, Command, run_engine
from fastovms.backends.processes import WorkerFailed, receive, send
from fastovms.config import EngineConfig
from fastovms.engine.model.devices import reason_of
from fastovms.engine.scheduler import rank_of
from fastovms.errors import BrokenLogits, ConfigurationError, RequestError
from fastovms.params import (
    EngineOutput,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    ModelInfo,
    Refusal,
    SamplingParams,
    TextPrompt,
    TokenLogprobs,
)
from fastovms.parts.genai.generation_config import generation_config, stop_token_ids
from fastovms.parts.genai.messages import EncodingImages, LoadPipeline, PipelineLoaded
from fastovms.parts.genai.pipeline import (
    Admission,
    CacheCapacity,
    PromptReader,
    RequiredResources,
    load_pipeline,
    longest_context,
)
from fastovms.parts.genai.support import DraftSource
from fastovms.system.memory import find_trim
from fastovms.telemetry.log_format import log_handler, start_log

logger = logging.getLogger(__name__)


TOO_LONG: Final = "'max_length' must be greater"
"""The pipeline's message for a prompt that is at least as long as the context."""

_REQUEST_ERRORS: Final = (RuntimeError, IndexError, ValueError)
"""The exception types with which the pipeline rejects invalid requests."""

_FINISH_REASONS: Final = {
    genai.GenerationFinishReason.STOP: FinishReason.STOP,
    genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH,
}


def output_of(
    params: SamplingParams,
    index: int,
    token_ids: list[int],
    logprobs: list[float],
    finish_reason: Any,
    *,
    num_generated_tokens: int,
) -> GenerationOutput:
    """Returns the output of one of the pipeline's generations, without the token that ended it."""
    output = GenerationOutput(
        index, token_ids, _FINISH_REASONS.get(finish_reason), num_generated_tokens
    )
    if output.finish_reason is FinishReason.STOP and token_ids:
        last = token_ids[-1]
        if last in stop_token_ids(params):
            output.token_ids = token_ids[:-1]
            if params.ignore_eos or last not in params.eos_token_ids:
                output.stop_token_id = last
            else:
                token_ids = token_ids[:-1]
    if params.logprobs is not None:
        output.logprobs = [
            _token_logprobs(token_id, logprob, params.logprobs)
            for token_id, logprob in zip(token_ids, logprobs, strict=False)
        ]
    return output


def _token_logprobs(token_id: int, logprob: float, num_top: int) -> TokenLogprobs:
    """Returns the log probability of the generated token; the pipeline reports no other tokens."""
    return TokenLogprobs(
        token_id,
        logprob,
        rank=1,
        top_token_ids=[token_id] * num_top,
        top_logprobs=[logprob] * num_top,
    )


def failed(index: int, error: str, refusal: Refusal | None = None) -> GenerationOutput:
    """Returns the output that ends a sample with an error."""
    return GenerationOutput(index, (), FinishReason.ERROR, 0, error=error, refusal=refusal)


def refusal_of(error: Exception, prompt: TextPrompt | None, model: ModelInfo) -> Refusal | None:
    """Returns the client's error if the request caused the exception; None = the request is not the
    cause."""
    name = None if prompt is None else prompt.name
    if isinstance(error, RequestError):
        return Refusal(error.message, error.param, error.code)
    if TOO_LONG in str(error):
        return Refusal(
            "the prompt with its images leaves no room to generate in the context of "
            f"{model.max_model_len} tokens",
            name,
            "context_length_exceeded",
        )
    if not isinstance(error, _REQUEST_ERRORS):
        return None
    reason = reason_of(error)
    if prompt is not None and len(prompt.image_names) == 1:
        name = prompt.image_names[0]
        return Refusal(f"{name}: the model cannot take this image: {reason}", name)
    return Refusal(f"the model cannot take this request: {reason}", name)


_LARGE: Final = 256 * 1024
"""Image pixels per request above which the encoder's memory is released afterwards."""

_TINY_SIDE: Final = 56


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """A queued request and the state of its samples.

    Attributes:
        rank: the request's position in the queue.
        has_images: whether the prompt has images; they are dropped when `num_queued` is 0.
        num_queued: the number of samples in the queue.
        was_admitted: whether a sample has left the queue.
        is_counted: whether the number of image tokens is known.
        silenced: the indices of aborted samples.
    """

    request: GenerationRequest
    seed: int
    rank: int
    has_images: bool
    num_queued: int = 0
    was_admitted: bool = False
    is_counted: bool = False
    silenced: set[int] = field(default_factory=set)

    def leave_queue(self) -> None:
        """Counts a sample that leaves the queue. The images are dropped with the last one."""
        self.num_queued -= 1
        prompt = self.request.prompt
        if prompt is not None and self.has_images and not self.num_queued:
            self.request = replace(self.request, prompt=replace(prompt, images=()))


@dataclass(slots=True, eq=False)
class _Run:
    """A request to the pipeline: one sample, or all beams of a search.

    Attributes:
        need: the pipeline resources that it needs.
        handle: the pipeline's handle; None while it waits.
    """

    job: _QueuedRequest
    indices: range
    need: RequiredResources
    handle: genai.GenerationHandle | None = None
    num_generated_tokens: int = 0

    @property
    def params(self) -> SamplingParams:
        return self.job.request.params

    @property
    def is_wanted(self) -> bool:
        return not self.job.silenced.issuperset(self.indices)


_rank = attrgetter("job.rank")


class PipelineEngine:
    """Implements `SteppedEngine` with the pipeline. Requests wait here, because the pipeline would
    accept all of them at once and encode their images. `admitted` are the requests that left the
    queue in the last step."""

    def __init__(
        self,
        pipeline: genai.ContinuousBatchingPipeline,
        model: ModelInfo,
        config: EngineConfig,
        capacity: CacheCapacity,
        *,
        new_seed: Callable[[], int] = lambda: secrets.randbits(32),
        on_images: Callable[[int], None] = lambda num_images: None,
        free_memory: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Args:
        new_seed: returns a seed for requests without one.
        on_images: called with the number of images before a request's images are encoded, which
            may take long.
        free_memory: returns freed memory to the operating system; called after images are
            encoded.
        """
        self.admitted: list[str] = []
        self._pipeline = pipeline
        self._model = model
        self._capacity = capacity
        self._admission = Admission(config, capacity, model.max_model_len)
        self._assistance = DraftSource.of(config)
        self._prompts = PromptReader(pipeline.get_tokenizer(), takes_images=model.takes_images)
        self._new_seed = new_seed
        self._on_images = on_images
        self._free_memory = free_memory
        self._clock = clock
        self._may_encode_at = 0.0
        self._is_encoder_large = False
        self._arrivals = count()
        self._pipeline_ids = count(1)
        self._waiting: list[_Run] = []
        self._running: list[_Run] = []
        self._cancelled: list[_Run] = []
        self._counters = EngineCounters()

    @property
    def has_work(self) -> bool:
        queues = self._waiting or self._running or self._cancelled
        return bool(queues) or self._is_encoder_large

    def add(self, request: GenerationRequest) -> None:
        seed = request.params.seed
        job = _QueuedRequest(
            request,
            self._new_seed() if seed is None else seed,
            rank_of(next(self._arrivals), request.priority),
            request.prompt is not None and bool(request.prompt.images),
        )
        for run in self._runs(job):
            job.num_queued += 1
            insort(self._waiting, run, key=_rank)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or the sample at `index`, without an output. Unknown ids are ignored. A
        beam search continues until all its samples are aborted."""
        for run in [*self._waiting, *self._running]:
            request = run.job.request
            if request.request_id == request_id:
                run.job.silenced.update(range(request.params.n) if index is None else (index,))
        self._waiting = [run for run in self._waiting if run.is_wanted]
        for run in [run for run in self._running if not run.is_wanted]:
            assert run.handle is not None
            run.handle.cancel()
            self._running.remove(run)
            self._cancelled.append(run)

    def step(self) -> list[EngineOutput]:
        """Runs one step of the pipeline and returns the outputs. The pipeline is unusable after an
        exception."""
        outputs = self._admit()
        if self._running or self._cancelled:
            self._pipeline.step()
            self._cancelled.clear()
        for run in list(self._running):
            outputs += self._read(run)
        self._counters.num_steps += 1
        return outputs

    def stats(self) -> BackendStats:
        num_free_blocks = num_blocks = self._capacity.num_blocks
        if self._running:
            used = self._pipeline.get_metrics().cache_usage / 100
            num_free_blocks = round(num_blocks * (1 - used))
        return BackendStats(
            num_running=sum(run.need.num_seqs for run in self._running),
            num_waiting=sum(len(run.indices) for run in self._waiting),
            block_size=self._capacity.block_size,
            num_blocks=num_blocks,
            num_free_blocks=num_free_blocks,
            counters=replace(self._counters),
        )

    # Admission

    def _runs(self, job: _QueuedRequest) -> Iterator[_Run]:
        params = job.request.params
        if params.beam_search is not None:
            need = self._admission.need(job.request, params.beam_search.num_beams)
            yield _Run(job, range(params.n), need)
            return
        need = self._admission.need(job.request, 1)
        for index in range(params.n):
            yield _Run(job, range(index, index + 1), need)

    def _admit(self) -> list[EngineOutput]:
        """Passes requests to the pipeline while they fit, but at most one with images, because no
        step runs while images are encoded. Between the images of two requests, running sequences
        get at least as much time for steps as the encoding took."""
        self.admitted = []
        outputs: list[EngineOutput] = []
        # A cancelled request keeps its place in the pipeline until the next step has ended.
        room = self._admission.room(run.need for run in (*self._running, *self._cancelled))
        may_encode = not self._running or self._clock() >= self._may_encode_at
        for run in list(self._waiting):
            if not room.has(run.need):
                break
            job = run.job
            if job.has_images and not may_encode:
                continue
            self._waiting.remove(run)
            if not job.was_admitted:
                job.was_admitted = True
                self.admitted.append(job.request.request_id)
                self._counters.num_prompt_tokens += len(job.request.prompt_token_ids)
            try:
                self._start(run)
            except Exception as error:
                outputs += self._not_started(run, error)
            else:
                room.take(run.need)
            if job.has_images:
                may_encode = False
            job.leave_queue()
        if may_encode and self._is_encoder_large:
            self._shrink_encoder()
        return outputs

    def _shrink_encoder(self) -> None:
        """Encodes a tiny image, to release memory: OpenVINO keeps the buffers of the last tensor
        shapes, which may be gigabytes."""
        self._is_encoder_large = False
        config = generation_config(
            SamplingParams(max_tokens=1),
            index=0,
            seed=0,
            max_length=self._model.max_model_len,
            max_new_tokens=1,
            assistance=self._assistance,
        )
        tiny = np.zeros((1, _TINY_SIDE, _TINY_SIDE, 3), np.uint8)
        try:
            handle = self._pipeline.add_request(
                next(self._pipeline_ids), image_tag(0), [ov.Tensor(tiny)], config
            )
        except RuntimeError as error:
            logger.debug("genai: cannot release the memory of the image encoder: %s", error)
        else:
            handle.cancel()
            self._pipeline.step()  # a step removes the cancelled request
        self._free_memory()

    def _start(self, run: _Run) -> None:
        request = run.job.request
        arguments = self._prompts.arguments(request)
        context, limit = self._model.max_model_len, request.params.max_tokens
        if not run.job.has_images:
            room = max(1, context - len(request.prompt_token_ids))
            self._submit(run, arguments, context, room if limit is None else min(limit, room))
            return
        assert request.prompt is not None
        self._on_images(len(request.prompt.images))
        num_pixels = sum(image.size // 3 for image in request.prompt.images)
        self._is_encoder_large |= num_pixels >= _LARGE
        started_at = self._clock()
        try:
            self._submit_with_images(run, arguments)
        finally:
            del arguments
            self._free_memory()
            now = self._clock()
            self._may_encode_at = now + (now - started_at)

    def _submit_with_images(self, run: _Run, arguments: tuple[Any, ...]) -> None:
        context, limit = self._model.max_model_len, run.params.max_tokens
        # The smaller limit depends on the prompt's number of tokens, which is not known yet: it is
        # `limit` if the prompt has at most `context - limit` tokens.
        if limit is not None and limit < context:
            try:
                self._submit(run, arguments, context - limit + 1, limit)
            except RuntimeError as error:
                if TOO_LONG not in str(error):
                    raise
            else:
                return
        self._submit(run, arguments, context, None)

    def _submit(
        self, run: _Run, arguments: tuple[Any, ...], max_length: int, max_new_tokens: int | None
    ) -> None:
        config = generation_config(
            run.params,
            index=run.indices[0],
            seed=run.job.seed,
            max_length=max_length,
            max_new_tokens=max_new_tokens,
            assistance=self._assistance,
        )
        run.handle = self._pipeline.add_request(next(self._pipeline_ids), *arguments, config)
        self._running.append(run)

    def _not_started(self, run: _Run, error: Exception) -> list[EngineOutput]:
        """Returns the outputs of a request that the pipeline has rejected; it checks requests
        before it computes anything."""
        request = run.job.request
        refusal = refusal_of(error, request.prompt, self._model)
        if refusal is None:
            logger.exception("request %s failed", request.request_id, exc_info=error)
        message = refusal.message if refusal else f"{type(error).__name__}: {error}"
        return [
            EngineOutput(request.request_id, failed(index, message, refusal))
            for index in run.indices
        ]

    # Outputs

    def _read(self, run: _Run) -> list[EngineOutput]:
        handle = run.handle
        assert handle is not None
        status = handle.get_status()
        outputs: list[GenerationOutput] = []
        if status == genai.GenerationStatus.IGNORED:
            outputs = [
                failed(index, "the KV cache has no room for the request") for index in run.indices
            ]
        elif run.params.beam_search is not None:
            if status == genai.GenerationStatus.FINISHED:
                outputs = self._beams(run, handle.read())
        else:
            outputs = list(self._sample(run, handle, status))
        if status != genai.GenerationStatus.RUNNING:
            self._running.remove(run)
            self._settle(run, handle, outputs)
        return [EngineOutput(run.job.request.request_id, output) for output in outputs]

    def _sample(
        self, run: _Run, handle: genai.GenerationHandle, status: Any
    ) -> Iterator[GenerationOutput]:
        """Yields the tokens since the last step as one output, or nothing if there are none."""
        token_ids: list[int] = []
        logprobs: list[float] = []
        is_finished = status == genai.GenerationStatus.FINISHED
        finish_reason = genai.GenerationFinishReason.NONE
        while handle.can_read():
            for part in handle.read().values():
                token_ids += part.generated_ids
                logprobs += part.generated_log_probs
                finish_reason = part.finish_reason
        if is_finished and finish_reason == genai.GenerationFinishReason.NONE:
            finish_reason = genai.GenerationFinishReason.STOP
        if token_ids or is_finished:
            run.num_generated_tokens += len(token_ids)
            self._counters.num_generated_tokens += len(token_ids)
            yield output_of(
                run.params,
                run.indices[0],
                token_ids,
                logprobs,
                finish_reason,
                num_generated_tokens=run.num_generated_tokens,
            )

    def _beams(self, run: _Run, found: dict[int, Any]) -> list[GenerationOutput]:
        """Returns the `n` best texts of a beam search, best first."""
        if any(math.isnan(beam.score) for beam in found.values()):
            return [failed(index, str(BrokenLogits())) for index in run.indices]
        best = sorted(found.values(), key=attrgetter("score"), reverse=True)
        outputs = []
        for index, beam in zip(run.indices, best, strict=False):
            self._counters.num_generated_tokens += len(beam.generated_ids)
            outputs.append(
                output_of(
                    run.params,
                    index,
                    beam.generated_ids,
                    beam.generated_log_probs,
                    beam.finish_reason,
                    num_generated_tokens=len(beam.generated_ids),
                )
            )
        return outputs

    def _settle(
        self, run: _Run, handle: genai.GenerationHandle, outputs: list[GenerationOutput]
    ) -> None:
        """Records the number of prompt tokens of a request with images."""
        job = run.job
        if not job.has_images:
            return
        num_prompt_tokens = handle.get_perf_metrics().get_num_input_tokens()
        if not job.is_counted:
            job.is_counted = True
            self._counters.num_prompt_tokens += num_prompt_tokens - len(
                job.request.prompt_token_ids
            )
        for output in outputs:
            output.num_prompt_tokens = num_prompt_tokens


def serve(connection: Connection[Any, Any]) -> None:
    """Answers a `LoadPipeline` with `PipelineLoaded` or `WorkerFailed`; then receives commands and
    sends `StepReport`s, until `Close` or the end of the connection."""
    load: LoadPipeline = receive(connection)
    handler = log_handler(logging.StreamHandler(), load.log_format)
    start_log(handler, load.log_level)
    try:
        pipeline, capacity = load_pipeline(load.model_dir, load.config, available=load.available)
    except ConfigurationError as error:
        send(connection, WorkerFailed(str(error)))
        return
    model = load.model
    longest = longest_context(load.config, capacity)
    if longest < model.max_model_len:
        model = replace(model, max_model_len=longest)
    engine = PipelineEngine(
        pipeline,
        model,
        load.config,
        capacity,
        on_images=lambda num_images: send(connection, EncodingImages(num_images)),
        free_memory=find_trim(),
    )
    send(connection, PipelineLoaded(model, engine.stats()))
    run(engine, connection)


def run(
    engine: PipelineEngine,
    connection: Connection[Any, Any],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Runs the engine until the connection to the server ends."""
    try:
        run_engine(
            engine,
            receive=lambda wait: _receive(connection, wait),
            take_stats=engine.stats,
            publish=partial(send, connection),
            clock=clock,
        )
    except (EOFError, ConnectionError):
        logger.debug("genai: the server process has ended")
    except Exception as error:
        logger.exception("genai: the pipeline failed")
        send(connection, WorkerFailed(f"{type(error).__name__}: {reason_of(error)}"))


def _receive(connection: Connection[Any, Any], wait: bool) -> list[Command]:
    commands: list[Command] = []
    try:
        if wait:
            commands.append(receive(connection))
        while connection.poll():
            commands.append(receive(connection))
    except EOFError:
        commands.append(Close())
    return commands
