"""Counts and times what one request generates, and tells the metrics and the access log of it as it
happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastovms.params import FinishReason, GenerationOutput, SamplingParams
from fastovms.telemetry.metrics import FinishedRequest, GenerationMetrics
from fastovms.telemetry.timings import SampleTimings
from fastovms.telemetry.tracing import GenerationEnd, Phase

Clock = Callable[[], float]


class SampleProgress:
    """The tokens of one sample so far.

    Attributes:
        position: which of the request's prompts it continues.
        num_tokens: how many there are, as usage counts them.
        first_token_at, last_token_at: seconds on the clock; None = there is none yet.
    """

    __slots__ = ("first_token_at", "last_token_at", "num_tokens", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.num_tokens = 0
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None


class RequestProgress:
    """The tokens of one request so far, and when they came.

    Attributes:
        samples: those of the first prompt, those of the next, ...
        num_prompt_tokens, num_cached_tokens: of each prompt.
        started_at: seconds on the clock.
    """

    def __init__(
        self,
        metrics: GenerationMetrics,
        log_fields: dict[str, object],
        num_prompt_tokens: Sequence[int],
        params: SamplingParams,
        clock: Clock,
    ) -> None:
        """
        Args:
            log_fields: always hold the tokens counted so far: whoever cancels a request reads them
                at once.
            params: those of each prompt.
        """
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
        """Takes over each prompt's cached tokens from the time when the same request scored it:
        what that has put into the cache is no saving."""
        self.num_cached_tokens = list(num_cached_tokens)
        self._log_fields["cached_tokens"] = sum(num_cached_tokens)
        self._is_scored = True

    def note_heard(self, sample: SampleProgress, output: GenerationOutput, num_tokens: int) -> None:
        """Takes note of an output of a process that has ended, of whose times nothing is known.

        Args:
            num_tokens: how many the sample now has.
        """
        self._has_times = False
        self.num_cached_tokens[sample.position] = output.num_cached_tokens
        if output.num_prompt_tokens is not None:
            self.num_prompt_tokens[sample.position] = output.num_prompt_tokens
        self.num_completion_tokens += num_tokens - sample.num_tokens
        sample.num_tokens = num_tokens

    def note_submitted(self) -> None:
        """Takes note that the prompts begin to wait."""
        self._submitted_at = self._clock()

    def note_output(
        self, sample: SampleProgress, output: GenerationOutput, num_tokens: int
    ) -> None:
        """Takes note of an output of a sample.

        Args:
            num_tokens: how many the sample now has.
        """
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
            self.num_prompt_tokens[position] = output.num_prompt_tokens
            self._log_fields["prompt_tokens"] = sum(self.num_prompt_tokens)
        if output.num_accepted_tokens:
            self._num_accepted_tokens += output.num_accepted_tokens
            self._log_fields["accepted_draft_tokens"] = self._num_accepted_tokens
        num_new = num_tokens - sample.num_tokens
        if num_new <= 0:
            return
        sample.num_tokens = num_tokens
        self.num_completion_tokens += num_new
        self._log_fields["completion_tokens"] = self.num_completion_tokens
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
        """Returns the phases of a sample; None where it has no token, or nothing tells how long it
        waited, or how long another process took for a part of it."""
        if not self._has_times:
            return None
        queue, submitted_at = self._queue_times[sample.position], self._submitted_at
        first_at, last_at = sample.first_token_at, sample.last_token_at
        if queue is None or submitted_at is None or first_at is None or last_at is None:
            return None
        prefill = max(first_at - submitted_at - queue, 0.0)
        return SampleTimings(queue, prefill, last_at - first_at, sample.num_tokens)

    def end(self, reasons: Sequence[FinishReason], error: BaseException | None) -> GenerationEnd:
        """Returns what a trace is told when all is over.

        Args:
            reasons: one for each sample.
            error: what made the request fail.
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
        """Returns the phases that the first sample has come to, and how long ago."""
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
        """Tells the metrics that all samples have ended, each for its reason."""
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
