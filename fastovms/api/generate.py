"""Runs a request on its backend: submits samples, receives their tokens, and passes on deltas of
text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from fastovms.api.prepare import ModelInput
from fastovms.backend import GenerationBackend, OutputCallback
from fastovms.errors import (
    BackendError,
    BackendUnavailable,
    EngineFailed,
    InvalidField,
    Overloaded,
    RequestError,
)
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
    TokenLogprobs,
)
from fastovms.telemetry.metrics import FinishedRequest, GenerationMetrics, SampleTimings
from fastovms.telemetry.tracing import GenerationEnd, GenerationSpan, Phase
from fastovms.text.detokenizer import Measure, TextToken, TrackingDetokenizer
from fastovms.text.output import TextStream
from fastovms.text.scanning import TEXT_PIECES, Piece, joined


def submit_all(
    backend: GenerationBackend, submissions: Iterable[tuple[GenerationRequest, OutputCallback]]
) -> None:
    """Queues all prompts. None runs before the function returns; if it raises, the caller must
    abort the queued ones. Raises InvalidField if the request has more prompts than the queue can
    ever hold, RequestError if a prompt can never run, and BackendError if the backend refuses the
    prompts."""
    num_others = backend.stats().num_waiting
    num_queued = 0
    for request, on_output in submissions:
        try:
            backend.submit(request, on_output)
        except Overloaded:
            if num_others or not num_queued:
                raise
            name = "prompt" if request.params.n == 1 else "n"
            raise InvalidField.about(
                name,
                f"asks for more samples than the queue holds: only {num_queued} samples "
                "of all prompts together can be queued",
            ) from None
        num_queued += request.params.n


_TOKEN_COST: Final = 256
_CALL_COST: Final = 256
"""The number of characters that a token with log probabilities, or the beginning of a call, counts
as."""


class SampleDelta(NamedTuple):
    """The result of one step for the text of one sample.

    Attributes:
        choice: prompt position * n + sample.
        text: new text; empty while it is held back, or if the text is parsed into `pieces`.
        finish_reason: set on the sample's last delta only.
        stop_reason: what ended the sample: a stop string, an id among `stop_token_ids`, or a
            repetition.
        num_tokens: tokens of the sample so far, as usage counts them.
        tokens: the tokens whose text begins in `text`, if tracked; without tokens that a stop
            string has cut off.
        pieces: the parts of the parsed text.
        parsed: the raw text that was parsed, to which the offsets of `tokens` refer; it may come
            before its pieces. Empty if tokens are not tracked.
    """

    choice: int
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_tokens: int = 0
    tokens: Sequence[TextToken] = ()
    pieces: Sequence[Piece] = ()
    parsed: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the delta has nothing to send to a client."""
        return not self.text and not self.pieces and not self.tokens

    @property
    def size(self) -> int:
        """The number of characters that count against the buffer of a slow client."""
        size = len(self.text) + len(self.parsed) + _TOKEN_COST * len(self.tokens)
        for piece in self.pieces:
            size += len(piece.text) if isinstance(piece, TEXT_PIECES) else _CALL_COST
        return size


def merged(deltas: Sequence[SampleDelta]) -> SampleDelta:
    """Returns the last of a sample's consecutive deltas, with the texts, tokens and pieces of
    all."""
    return deltas[-1]._replace(
        text="".join([delta.text for delta in deltas]),
        tokens=[token for delta in deltas for token in delta.tokens],
        pieces=joined(piece for delta in deltas for piece in delta.pieces),
        parsed="".join([delta.parsed for delta in deltas]),
    )


class Usage(NamedTuple):
    """The token counts of a request so far; a prompt counts once, regardless of the number of
    samples.

    Attributes:
        reasoning_tokens: how many of the completion tokens are reasoning; None = the text is not
            parsed.
        timings: the durations of its one sample; None = not reported.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None
    timings: SampleTimings | None = None


DeltaCallback = Callable[[SampleDelta], None]


Clock = Callable[[], float]


class SampleProgress:
    """The number of tokens of one sample so far, and their times.

    Attributes:
        position: the index of its prompt in the request.
        num_tokens: the number of tokens, as usage counts them.
        first_token_at, last_token_at: seconds on the clock; None = no token yet.
    """

    __slots__ = ("first_token_at", "last_token_at", "num_tokens", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.num_tokens = 0
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None


class RequestProgress:
    """The token counts of one request so far, and their times.

    Attributes:
        samples: all samples, ordered by prompt.
        num_prompt_tokens, num_cached_tokens: the counts for each prompt.
        started_at: seconds on the clock.
    """

    def __init__(
        self,
        metrics: GenerationMetrics,
        log_fields: dict[str, object],
        num_prompt_tokens: Sequence[int],
        params: SamplingParams,
        clock: Clock,
        charge: Callable[[int], None],
    ) -> None:
        """
        Args:
            log_fields: updated with the token counts at each step, so that they are right also
                after a cancellation.
            params: the parameters of each prompt.
            charge: counts tokens against the limits of the API key.
        """
        self._charge = charge
        self._metrics = metrics
        self._log_fields = log_fields
        self._clock = clock
        self._params = params
        self.num_prompt_tokens = list(num_prompt_tokens)
        self.num_cached_tokens = [0 for _ in num_prompt_tokens]
        self._is_scored = False
        self.num_completion_tokens = 0
        self._num_accepted_tokens = 0
        self.samples = [
            SampleProgress(position)
            for position in range(len(num_prompt_tokens))
            for _ in range(params.n)
        ]
        self._queue_times: list[float | None] = [None for _ in num_prompt_tokens]
        self.started_at = clock()
        self._submitted_at: float | None = None
        self._has_times = True
        log_fields["prompt_tokens"] = sum(num_prompt_tokens)
        log_fields["cached_tokens"] = 0
        log_fields["completion_tokens"] = 0

    def note_scored(self, num_cached_tokens: Sequence[int]) -> None:
        """Sets each prompt's number of cached tokens, measured by an earlier scoring of the same
        request; blocks cached by that scoring do not count."""
        self.num_cached_tokens = list(num_cached_tokens)
        self._log_fields["cached_tokens"] = sum(num_cached_tokens)
        self._is_scored = True

    def note_restored(
        self, sample: SampleProgress, output: GenerationOutput, num_tokens: int
    ) -> None:
        """Records an output that an earlier process produced, without times. `num_tokens` is the
        sample's new number of tokens."""
        self._has_times = False
        self.num_cached_tokens[sample.position] = output.num_cached_tokens
        if output.num_prompt_tokens is not None:
            self.num_prompt_tokens[sample.position] = output.num_prompt_tokens
        self.num_completion_tokens += num_tokens - sample.num_tokens
        sample.num_tokens = num_tokens

    def note_submitted(self) -> None:
        """Records that the prompts were queued."""
        self._submitted_at = self._clock()
        self._charge(sum(self.num_prompt_tokens))

    def note_output(
        self, sample: SampleProgress, output: GenerationOutput, num_tokens: int
    ) -> None:
        """Records an output of a sample. `num_tokens` is the sample's new number of tokens, which
        decreases if a stop string was completed before text that was held back."""
        position = sample.position
        if output.queue_time is not None:
            self._queue_times[position] = output.queue_time
            self._metrics.request_queue_time.observe(output.queue_time)
            self._log_fields.setdefault("queue_ms", round(output.queue_time * 1000, 1))
        num_cached = output.num_cached_tokens
        if num_cached != self.num_cached_tokens[position] and not self._is_scored:
            self.num_cached_tokens[position] = num_cached
            self._log_fields["cached_tokens"] = sum(self.num_cached_tokens)
        if output.num_prompt_tokens is not None:
            self._charge(output.num_prompt_tokens - self.num_prompt_tokens[position])
            self.num_prompt_tokens[position] = output.num_prompt_tokens
            self._log_fields["prompt_tokens"] = sum(self.num_prompt_tokens)
        if output.num_accepted_tokens:
            self._num_accepted_tokens += output.num_accepted_tokens
            self._log_fields["accepted_draft_tokens"] = self._num_accepted_tokens
        num_new = num_tokens - sample.num_tokens
        sample.num_tokens = num_tokens
        self.num_completion_tokens += num_new
        self._charge(num_new)
        self._log_fields["completion_tokens"] = self.num_completion_tokens
        if num_new <= 0:
            return
        now = self._clock()
        if sample.last_token_at is None:
            sample.first_token_at = now
            elapsed = now - self.started_at
            self._metrics.time_to_first_token.observe(elapsed)
            self._log_fields.setdefault("first_token_ms", round(elapsed * 1000, 1))
        else:
            elapsed = now - sample.last_token_at
            self._metrics.inter_token_latency.observe(elapsed / num_new, num_new)
        sample.last_token_at = now

    def timings(self, sample: SampleProgress) -> SampleTimings | None:
        """Returns the durations of a sample's phases; None if it has no token, its queue time is
        unknown, or another process computed a part of it."""
        if not self._has_times:
            return None
        queue, submitted_at = self._queue_times[sample.position], self._submitted_at
        first_at, last_at = sample.first_token_at, sample.last_token_at
        if queue is None or submitted_at is None or first_at is None or last_at is None:
            return None
        prefill = max(first_at - submitted_at - queue, 0.0)
        decode = last_at - first_at
        return SampleTimings(queue, prefill, decode, sample.num_tokens, self._num_accepted_tokens)

    def end(self, reasons: Sequence[FinishReason], error: BaseException | None) -> GenerationEnd:
        """Returns the final attributes of the request's span.

        Args:
            reasons: the finish reasons, one for each sample.
            error: the error that ended the request, if any.
        """
        return GenerationEnd(
            [reason.value for reason in reasons],
            sum(self.num_prompt_tokens),
            sum(self.num_cached_tokens),
            self.num_completion_tokens,
            self._phases(),
            None if error is None else (type(error).__name__, str(error)),
        )

    def _phases(self) -> list[Phase]:
        """Returns the phases that the first sample has reached, and how many seconds ago each
        began."""
        now, sample, submitted_at = self._clock(), self.samples[0], self._submitted_at
        if submitted_at is None:
            return []
        phases = [Phase("queue", now - submitted_at)]
        queue = self._queue_times[0]
        if queue is not None:
            phases.append(Phase("prefill", now - submitted_at - queue))
        if sample.first_token_at is not None:
            phases.append(Phase("decode", now - sample.first_token_at))
        return phases

    def finish(self, reasons: Sequence[FinishReason]) -> None:
        """Records in the metrics that all samples have ended, with their reasons."""
        n = self._params.n
        by_prompt = [self.samples[first : first + n] for first in range(0, len(self.samples), n)]
        timings = map(self.timings, self.samples)
        self._metrics.request_finished(
            FinishedRequest(
                seconds=self._clock() - self.started_at,
                finish_reasons=[reason.value for reason in reasons],
                num_prompt_tokens=sum(self.num_prompt_tokens),
                num_generated_tokens=self.num_completion_tokens,
                n=n,
                max_tokens=self._params.max_tokens,
                timings=[each for each in timings if each is not None],
                longest=[max(sample.num_tokens for sample in samples) for samples in by_prompt],
            )
        )


BeginSpan = Callable[[SamplingParams], GenerationSpan | None]
"""Begins the span of a generation whose prompts have these parameters; None = no span."""

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

    The backend's outputs arrive as callbacks on the event loop and pass directly through
    detokenizer, stop strings and output parser to the consumer, without a queue or a task per
    token.

    Use as a context manager: leaving it aborts running samples.

    Attributes:
        prompt_logprobs: for each prompt, one entry per token, if its `SamplingParams` ask for them;
            complete when `run` has returned.
    """

    def __init__(
        self,
        given: ModelInput[Any],
        log_fields: dict[str, object],
        begin_span: BeginSpan | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """
        Args:
            log_fields: the access log's fields for the request; see `RequestProgress`.
            begin_span: begins a span, which ends with the generation; None = tracing is off.
        """
        asked, model = given.asked, given.asked.model
        self._parses = given.new_parser is not None
        self._backend = model.backend
        self._requests = given.requests
        self._includes_stop = given.stopping.include
        self._progress = RequestProgress(
            model.metrics,
            log_fields,
            [len(request.prompt_token_ids) for request in given.requests],
            given.requests[0].params,
            clock,
            asked.caller.charge,
        )
        track = None
        if given.report.needs_tokens or given.candidates.are_ranked:
            track = len if self._parses else asked.dialect.text_length
        self._samples = [_new_sample(given, track, progress) for progress in self._progress.samples]
        self.prompt_logprobs: list[Sequence[TokenLogprobs | None]] = [() for _ in given.requests]
        self._reports_timings = given.report.has_timings
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
        failure = self.abort()
        if self._release is not None:
            self._release()
        if self._span is not None:
            reasons = [sample.finish_reason or FinishReason.ABORT for sample in self._samples]
            error = exc if isinstance(exc, Exception) else failure
            # A request that only echoes its prompts was never submitted to the backend.
            self._span.end(self._progress.end([] if self._done is None else reasons, error))

    @property
    def has_lost_backend(self) -> bool:
        """Whether the backend has failed and cannot generate any more."""
        return self._backend.failure is not None

    @property
    def num_samples(self) -> int:
        """The number of samples of all prompts."""
        return len(self._samples)

    @property
    def usage(self) -> Usage:
        """The token counts of all prompts and samples so far."""
        progress = self._progress
        # With several samples, the timings of one are not those of the request.
        has_timings = self._reports_timings and len(self._samples) == 1
        return Usage(
            sum(progress.num_prompt_tokens),
            progress.num_completion_tokens,
            sum(progress.num_cached_tokens),
            sum(s.text.num_reasoning_tokens for s in self._samples) if self._parses else None,
            progress.timings(progress.samples[0]) if has_timings else None,
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
        """Sets each prompt's number of cached tokens; see `RequestProgress`."""
        self._progress.note_scored(num_cached_tokens)

    async def run(self, on_delta: DeltaCallback) -> None:
        """Submits the prompts and returns when every sample is finished. Raises the errors of
        `submit` and `finished`."""
        self.submit(on_delta)
        await self.finished()

    def restore(self, outputs: Iterable[GenerationOutput], on_delta: DeltaCallback) -> None:
        """Restores the output of an earlier process for the only sample; `submit` then continues
        after it. May be called several times.

        Args:
            on_delta: see `submit`.
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
            # Blocks may be in the cache from the earlier run of this request: do not count them.
            self._progress.note_scored(self._progress.num_cached_tokens)
        self._requests = [replace(request, generated_token_ids=token_ids)]

    def submit(
        self,
        on_delta: DeltaCallback,
        on_output: Callable[[GenerationOutput], None] | None = None,
    ) -> None:
        """Queues the prompts, unless all of their samples are already finished.

        `on_delta` is called on the event loop for every step of every sample; an exception in it
        ends the run. Raises RequestError if a prompt can never run, and BackendError if the backend
        refuses the prompts. `on_output` is called with each output of the backend, before its
        delta.
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
        """Waits until every sample is finished. Raises BackendError, or the error of `on_delta`."""
        assert self._done is not None
        await self._done

    def abort(self) -> BaseException | None:
        """Aborts running samples. Returns the error that made the run fail; None = no error."""
        error = None
        if self._done is not None and not self._done.cancel() and not self._done.cancelled():
            # Retrieving the error also prevents asyncio's warning about an unread exception.
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
        except Exception as error:  # the caller of `run` must get the error
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
            delta = sample.text.flush(is_cut=finish_reason is not FinishReason.STOP)
            text, stop = text + delta.text, delta.stop
            pieces = joined([*pieces, *delta.pieces])
        tokens: Sequence[TextToken] = ()
        if tracking is not None:
            tokens = tracking.take(text, ended=finish_reason is not None and stop is None)
        num_tokens = output.num_generated_tokens
        if stop is not None:
            # Tokens after the one that completed the stop string are dropped and not counted.
            num_tokens = delta.num_tokens
            if finish_reason is None:
                self._backend.abort(self._requests[position].request_id, output.index)
            finish_reason = FinishReason.STOP
        parsed = ""
        if self._parses:
            if tracking is not None:
                parsed = text
            text = ""  # the text is in `pieces`
        note = self._progress.note_output if self._is_live else self._progress.note_restored
        note(sample.progress, output, num_tokens)
        sample.finish_reason = finish_reason
        if finish_reason is not None:
            self._num_unfinished -= 1
        assert self._on_delta is not None
        assert self._done is not None
        stop_reason: str | int | None = output.stop_token_id if stop is None else stop
        if finish_reason is FinishReason.REPETITION:
            stop_reason = "repetition_detected"
        self._on_delta(
            SampleDelta(
                choice, text, finish_reason, stop_reason, num_tokens, tokens, pieces, parsed
            )
        )
        if not self._num_unfinished:
            # Not after `await self._done`: a client that has received its last event may have
            # disconnected by then.
            self._progress.finish([s.finish_reason for s in self._samples if s.finish_reason])
            self._done.set_result(None)


def _new_sample(given: ModelInput[Any], track: Measure | None, progress: SampleProgress) -> _Sample:
    """Returns a sample; `track` is the unit of its tokens' offsets, None = tokens are not
    tracked."""
    stopping, detokenizer = given.stopping, given.new_detokenizer()
    tracking = None if track is None else TrackingDetokenizer(detokenizer, track)
    text = TextStream(
        tracking or detokenizer,
        stopping.strings,
        include_stop=stopping.include,
        min_tokens=stopping.min_tokens,
        parser=None if given.new_parser is None else given.new_parser(),
        stop_in_reasoning=stopping.in_reasoning,
    )
    return _Sample(text, tracking, progress)


def failure(output: GenerationOutput) -> BackendError | RequestError:
    """Returns the error for a sample that ended with ABORT or ERROR."""
    if (refusal := output.refusal) is not None:
        return RequestError(refusal.message, param=refusal.param, code=refusal.code)
    if output.finish_reason is FinishReason.ABORT:
        return BackendUnavailable("the server is shutting down")
    return EngineFailed(output.error or "generation failed")
