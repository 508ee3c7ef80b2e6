"""What is counted and timed of a request, and who is told."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.api.generation.progress import RequestProgress
from fastovms.backend_stats import BackendStats
from fastovms.params import FinishReason, GenerationOutput, SamplingParams
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.telemetry.timings import SampleTimings


class Told:
    """One request's progress, and whoever is told of it. `now` is the time."""

    def __init__(self, num_prompt_tokens: Sequence[int] = (3,), n: int = 1) -> None:
        self.now = 100.0
        self.metrics = GenerationMetrics("m", BackendStats)
        self.log_fields: dict[str, object] = {}
        params = SamplingParams(n=n, max_tokens=50)
        self.progress = RequestProgress(
            self.metrics, self.log_fields, num_prompt_tokens, params, lambda: self.now
        )
        self.progress.note_submitted()

    def submit(self, at: float) -> None:
        self.now = at
        self.progress.note_submitted()

    def give(self, sample: int, num_tokens: int, at: float, queue: float | None = None) -> None:
        self.now = at
        progress = self.progress.samples[sample]
        output = GenerationOutput(0, (), None, 0, queue_time=queue)
        self.progress.note_output(progress, output, progress.num_tokens + num_tokens)


def test_phases_begin_when_the_prompt_is_submitted_and_admitted() -> None:
    told = Told()
    told.submit(at=101.0)
    told.give(0, 1, at=104.0, queue=2.0)
    told.give(0, 2, at=108.0)
    [sample] = told.progress.samples
    assert told.progress.timings(sample) == SampleTimings(2.0, 1.0, 4.0, 3)
    told.progress.finish([FinishReason.STOP])
    metrics = told.metrics
    sums = {
        "request_queue_time": 2.0,
        "request_prefill_time": 1.0,
        "request_decode_time": 4.0,
        "request_time_per_output_token": 2.0,
        "request_max_num_generation_tokens": 3,
        "time_to_first_token": 4.0,
        "inter_token_latency": 4.0,
        "e2e_request_latency": 8.0,
    }
    assert {name: getattr(metrics, name).buckets()[1] for name in sums} == sums
    assert told.log_fields == {
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "completion_tokens": 3,
        "queue_ms": 2000.0,
        "first_token_ms": 4000.0,
    }


def test_the_longest_sample_of_each_prompt_is_told() -> None:
    told = Told((1, 1), n=2)
    for sample, num_tokens in enumerate((4, 7, 2, 1)):
        told.give(sample, num_tokens, at=101.0)
    told.progress.finish([FinishReason.STOP] * 4)
    assert told.metrics.request_max_num_generation_tokens.count == 2
    assert told.metrics.request_max_num_generation_tokens.buckets()[1] == 7 + 2


def test_all_samples_of_a_prompt_have_waited_alike() -> None:
    told = Told(n=2)
    told.give(0, 1, at=101.0, queue=0.25)
    told.give(1, 1, at=102.0)
    assert [told.progress.timings(sample) for sample in told.progress.samples] == [
        SampleTimings(0.25, 0.75, 0.0, 1),
        SampleTimings(0.25, 1.75, 0.0, 1),
    ]
    told.progress.finish([FinishReason.STOP] * 2)
    assert told.metrics.request_time_per_output_token.count == 0, "one token has no gaps"


def test_nothing_is_made_up_where_a_sample_has_no_token_or_nobody_says_how_long_it_waited() -> None:
    told = Told()
    [sample] = told.progress.samples
    assert told.progress.timings(sample) is None
    told.give(0, 1, at=101.0)
    assert told.progress.timings(sample) is None
    told.progress.finish([FinishReason.STOP])
    assert told.metrics.request_prefill_time.count == 0


def test_cached_tokens_and_accepted_drafts_are_in_the_log() -> None:
    told = Told((5, 5))
    for sample, num_accepted in ((0, 2), (0, 3), (1, 0)):
        output = GenerationOutput(
            0, (), None, 0, num_cached_tokens=4, num_accepted_tokens=num_accepted
        )
        told.progress.note_output(told.progress.samples[sample], output, 1)
    assert told.log_fields["cached_tokens"] == 8
    assert told.log_fields["accepted_draft_tokens"] == 5


def test_what_scoring_has_put_into_the_cache_is_no_saving() -> None:
    told = Told((5,))
    told.progress.note_scored([1])
    output = GenerationOutput(0, (), None, 0, num_cached_tokens=4)
    told.progress.note_output(told.progress.samples[0], output, 1)
    assert told.log_fields["cached_tokens"] == 1
    assert told.progress.num_cached_tokens == [1]
