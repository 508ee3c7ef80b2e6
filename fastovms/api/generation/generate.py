"""Runs the one text pipeline of all endpoints: prompts to the backend, tokens to text deltas.

The backend's outputs arrive as callbacks on the event loop and are pushed straight through
detokenizer, stop strings and output parser to the consumer: no queue, and no task is woken for a
token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from fastovms.api.generation.cut_generation import failure
from fastovms.api.generation.deltas import DeltaCallback, SampleDelta, Usage
from fastovms.api.generation.progress import Clock, RequestProgress, SampleProgress
from fastovms.api.generation.submission import submit_all
from fastovms.api.request.common_fields import Stopping
from fastovms.api.request.generation_options import GenerationOptions
from fastovms.api.request.prompting.prompt_task import PromptTask
from fastovms.api.serving.served import ServedModel
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
    TokenLogprobs,
)
from fastovms.telemetry.tracing import GenerationSpan
from fastovms.text.scanning.output import OutputParser, joined
from fastovms.text.text_stream import TextStream, content_of
from fastovms.text.tokens.detokenizer import LocatingDetokenizer
from fastovms.text.tokens.stop import completes_stop
from fastovms.text.tokens.tracking import Measure, TextToken, TrackingDetokenizer

BeginSpan = Callable[[SamplingParams], GenerationSpan | None]
"""Begins the span of a generation whose prompts have these parameters; None = it has none."""

_FAILED: Final = (FinishReason.ERROR, FinishReason.ABORT)


class _Sample:
    __slots__ = ("finish_reason", "progress", "text", "tracking")

    def __init__(
        self, text: TextStream, tracking: TrackingDetokenizer | None, progress: SampleProgress
    ) -> None:
        self.text = text
        self.tracking = tracking
        self.progress = progress
        self.finish_reason: FinishReason | None = None


class TextGeneration:
    """Runs the prompts of one API request.

    Use as a context manager: leaving it, for whatever reason, frees what still runs.

    Attributes:
        prompt_logprobs: for each prompt, one entry a token, where its `SamplingParams` asked for
            them; complete when `run` has returned.
    """

    def __init__(
        self,
        model: ServedModel,
        tasks: Sequence[PromptTask],
        options: GenerationOptions,
        *,
        request_id: str,
        log_fields: dict[str, object],
        measure: Measure,
        new_parser: Callable[[], OutputParser] | None = None,
        begin_span: BeginSpan | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """
        Args:
            log_fields: what the access log tells of the request; see `RequestProgress`.
            measure: the unit in which the offsets of tokens count.
            new_parser: makes the parser of one sample's text; None = the text goes on with the
                prompt's, instead of beginning a new one.
            begin_span: is called as the context is entered; what it returns ends with it.
        """
        stopping, queueing = options.stopping, options.queueing
        self._parses = new_parser is not None
        self._backend = model.backend
        new_detokenizer = partial(
            model.tokenizer.detokenizer,
            skip_special_tokens=options.skip_special_tokens,
            continues=not self._parses,
            keep=model.chat.tags if self._parses else frozenset(),
        )
        searched = None
        if new_parser is not None and not stopping.in_reasoning:
            searched = partial(content_of, new_parser)
        ends_text = partial(
            completes_stop, new_detokenizer, stopping.strings, stopping.min_tokens, searched
        )
        self._requests = [
            GenerationRequest(
                f"{request_id}-{position}",
                task.token_ids,
                task.params,
                priority=queueing.priority,
                cache_salt=queueing.cache_salt,
                tenant=queueing.tenant,
                owner=queueing.owner,
                prompt=task.prompt,
                ends_text=ends_text if task.params.beam_search and stopping.strings else None,
            )
            for position, task in enumerate(tasks)
        ]
        self._includes_stop = stopping.include
        self._progress = RequestProgress(
            model.metrics,
            log_fields,
            [len(task.token_ids) for task in tasks],
            tasks[0].params,
            clock,
        )
        self._samples = [
            _new_sample(
                new_detokenizer(),
                stopping,
                measure if options.needs_tokens else None,
                None if new_parser is None else new_parser(),
                progress,
            )
            for progress in self._progress.samples
        ]
        self.prompt_logprobs: list[Sequence[TokenLogprobs | None]] = [() for _ in tasks]
        self._tells_timings = options.report.has_timings
        self._begin_span = begin_span
        self._span: GenerationSpan | None = None
        self._hold = model.hold
        self._release: Callable[[], None] | None = None
        self._on_delta: DeltaCallback | None = None
        self._on_heard: Callable[[GenerationOutput], None] | None = None
        self._is_live = True
        self._num_unfinished = len(self._samples)
        self._done: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._release = self._hold()
        if self._begin_span is not None:
            self._span = self._begin_span(self._requests[0].params)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failure = self._abort()
        if self._release is not None:
            self._release()
        if self._span is not None:
            reasons = [sample.finish_reason or FinishReason.ABORT for sample in self._samples]
            error = exc if isinstance(exc, Exception) else failure
            # What only echoes its prompts has been submitted to nobody.
            self._span.end(self._progress.end([] if self._done is None else reasons, error))

    @property
    def has_lost_backend(self) -> bool:
        """Whether nothing can be generated any more, whatever is asked for."""
        return self._backend.failure is not None

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    @property
    def usage(self) -> Usage:
        progress = self._progress
        # Those of several samples are not the request's.
        tells_timings = self._tells_timings and len(self._samples) == 1
        return Usage(
            sum(progress.num_prompt_tokens),
            progress.num_completion_tokens,
            sum(progress.num_cached_tokens),
            sum(s.text.num_reasoning_tokens for s in self._samples) if self._parses else None,
            progress.timings(progress.samples[0]) if tells_timings else None,
        )

    def usage_of(self, choice: int) -> Usage:
        """Returns the usage of one sample with its prompt."""
        sample = self._samples[choice]
        position = sample.progress.position
        return Usage(
            self._progress.num_prompt_tokens[position],
            sample.progress.num_tokens,
            self._progress.num_cached_tokens[position],
            sample.text.num_reasoning_tokens if self._parses else None,
        )

    def note_scored(self, num_cached_tokens: Sequence[int]) -> None:
        """Takes over each prompt's cached tokens; see `RequestProgress`."""
        self._progress.note_scored(num_cached_tokens)

    async def run(self, on_delta: DeltaCallback) -> None:
        """Submits the prompts and returns when every sample is finished. It raises as `submit` and
        `finished` do."""
        self.submit(on_delta)
        await self.finished()

    def hear(self, outputs: Iterable[GenerationOutput], on_delta: DeltaCallback) -> None:
        """Takes over what the backend has said of the only sample in a process that has ended:
        `submit` then goes on behind it. It may be told piece by piece.

        Args:
            on_delta: as for `submit`.
        """
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        self._on_delta, self._is_live = on_delta, False
        [request] = self._requests
        token_ids = list(request.generated_token_ids)
        for output in outputs:
            token_ids += output.token_ids
            self._on_output(0, 0, output)
        self._is_live = True
        if token_ids:
            # What is in the cache now was generated for this prompt.
            self._progress.note_scored(self._progress.num_cached_tokens)
        self._requests = [replace(request, generated_token_ids=token_ids)]

    def submit(
        self,
        on_delta: DeltaCallback,
        on_output: Callable[[GenerationOutput], None] | None = None,
    ) -> None:
        """Queues the prompts, unless all of their samples are known to be finished.

        `on_delta` is called on the event loop for every step of every sample; what it raises ends
        the run.

        Args:
            on_output: called with what the backend has said, before the delta that is made of it.

        Raises:
            RequestError: a prompt can never run.
            BackendError: the backend cannot take the prompts.
        """
        self._on_delta, self._on_heard = on_delta, on_output
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        if not self._num_unfinished:
            return
        n = self._requests[0].params.n
        self._progress.note_submitted()
        submit_all(
            self._backend,
            [
                (request, partial(self._on_output, position, position * n))
                for position, request in enumerate(self._requests)
            ],
        )

    async def finished(self) -> None:
        """Returns when every sample is finished. Raises BackendError, or what `on_delta` raised."""
        assert self._done is not None
        await self._done

    def _abort(self) -> BaseException | None:
        """Frees what still runs. Returns what has made the run fail."""
        error = None
        if self._done is not None and not self._done.cancel() and not self._done.cancelled():
            # Also so that asyncio does not complain that nobody has asked for it.
            error = self._done.exception()
        if self._num_unfinished:
            for request in self._requests:
                self._backend.abort(request.request_id)
        return error

    def _on_output(self, position: int, first_choice: int, output: GenerationOutput) -> None:
        sample = self._samples[first_choice + output.index]
        if self._done is None or self._done.done() or sample.finish_reason is not None:
            return
        try:
            self._advance(position, first_choice + output.index, sample, output)
        except Exception as error:  # whoever waits in `run` must learn of it
            if not self._done.done():
                self._done.set_exception(error)

    def _advance(
        self, position: int, choice: int, sample: _Sample, output: GenerationOutput
    ) -> None:
        finish_reason = output.finish_reason
        if finish_reason is not None and finish_reason in _FAILED:
            raise failure(output)
        if self._on_heard is not None:
            self._on_heard(output)
        if output.prompt_logprobs:
            self.prompt_logprobs[position] = output.prompt_logprobs
        token_ids = output.token_ids
        tracking = sample.tracking
        if tracking is not None:
            tracking.expect(output.logprobs)
        if output.stop_token_id is not None and self._includes_stop:
            token_ids = (*token_ids, output.stop_token_id)
        delta = sample.text.push(token_ids)
        text, stop, pieces = delta.text, delta.stop, delta.pieces
        if finish_reason is not None and stop is None:
            delta = sample.text.flush(is_cut=finish_reason is FinishReason.LENGTH)
            text, stop = text + delta.text, delta.stop
            pieces = joined([*pieces, *delta.pieces])
        tokens: Sequence[TextToken] = ()
        if tracking is not None:
            tokens = tracking.take(text, ended=finish_reason is not None and stop is None)
        num_tokens = output.num_generated_tokens
        if stop is not None:
            # Tokens behind the one that completed the stop string are dropped and not counted.
            num_tokens = delta.num_tokens
            if finish_reason is None:
                self._backend.abort(self._requests[position].request_id, output.index)
            finish_reason = FinishReason.STOP
        parsed = ""
        if self._parses:
            if tracking is not None:
                parsed = text
            text = ""  # the pieces hold it
        note = self._progress.note_output if self._is_live else self._progress.note_heard
        note(sample.progress, output, num_tokens)
        sample.finish_reason = finish_reason
        if finish_reason is not None:
            self._num_unfinished -= 1
        assert self._on_delta is not None
        assert self._done is not None
        stop_reason = output.stop_token_id if stop is None else stop
        self._on_delta(
            SampleDelta(
                choice, text, finish_reason, stop_reason, num_tokens, tokens, pieces, parsed
            )
        )
        if not self._num_unfinished:
            # Not after `await self._done`: a client that has its last event may be gone by then.
            self._progress.finish([s.finish_reason for s in self._samples if s.finish_reason])
            self._done.set_result(None)


def _new_sample(
    detokenizer: LocatingDetokenizer,
    stopping: Stopping,
    track: Measure | None,
    parser: OutputParser | None,
    progress: SampleProgress,
) -> _Sample:
    tracking = None if track is None else TrackingDetokenizer(detokenizer, track)
    text = TextStream(
        tracking or detokenizer,
        stopping.strings,
        include_stop=stopping.include,
        min_tokens=stopping.min_tokens,
        parser=parser,
        stop_in_reasoning=stopping.in_reasoning,
    )
    return _Sample(text, tracking, progress)
