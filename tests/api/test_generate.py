"""Tests of `fastovms/api/generate.py`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from fastovms.api.generate import RequestProgress, failure
from fastovms.backend_stats import BackendStats
from fastovms.errors import BackendUnavailable, EngineFailed, RequestError
from fastovms.params import FinishReason, GenerationOutput, Refusal, SamplingParams
from fastovms.telemetry.metrics import GenerationMetrics, SampleTimings
from tests.api.chat_models import MESSAGES
from tests.api.chats import make
from tests.api.completion_requests import BODY, V1, V3, texts
from tests.fakes import FakeStream


@pytest.mark.slow
@pytest.mark.parametrize("others_wait", [False, True])
@pytest.mark.parametrize("fields", [{}, {"echo": True, "logprobs": 1, "max_tokens": 0}])
@pytest.mark.parametrize(
    ("prompts", "n", "param"),
    [
        (1, 1, None),
        (1, 9, None),
        (4, 1, None),
        (5, 1, "prompt"),
        (3, 2, "n"),
        (2, 4, "n"),
        (2, 3, None),
    ],
)
async def test_prompts_of_a_request_are_queued_together_or_refused(
    make_api, prompts, n, param, fields, others_wait
):
    """No request waits forever for a place in a queue that is too short for it."""
    api = make_api("z")
    backend = api.backend
    backend.max_num_waiting = 4
    other = None
    if others_wait:
        backend.paused = True
        other = asyncio.create_task(api.post(V1, {**BODY, "n": 4}))
        await backend.received.wait()
    num_others = len(backend.submitted)
    status, answer = await api.post(V1, {**BODY, **fields, "prompt": ["a"] * prompts, "n": n})
    if other is not None:
        assert status == 429
        assert len(backend.submitted) == num_others
        backend.paused = False
        backend.step()
        assert (await other)[0] == 200
    elif param is not None and not (fields and n > 1):
        assert (status, answer["error"]["param"]) == (400, param)
        assert param in answer["error"]["message"]
    else:
        assert (status, len(answer["choices"])) == (200, prompts * n)
    assert backend.stats().num_running == 0


# The counts and times of a request, and their recipients.


class Told:
    """The progress of one request, and all that are notified of it. `now` is the time."""

    def __init__(self, num_prompt_tokens: Sequence[int] = (3,), n: int = 1) -> None:
        self.now = 100.0
        self.metrics = GenerationMetrics("m", BackendStats)
        self.log_fields: dict[str, object] = {}
        self.charged: list[int] = []
        params = SamplingParams(n=n, max_tokens=50)
        self.progress = RequestProgress(
            self.metrics,
            self.log_fields,
            num_prompt_tokens,
            params,
            lambda: self.now,
            self.charged.append,
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


def test_metric_counts_the_longest_sample_of_each_prompt() -> None:
    told = Told((1, 1), n=2)
    for sample, num_tokens in enumerate((4, 7, 2, 1)):
        told.give(sample, num_tokens, at=101.0)
    told.progress.finish([FinishReason.STOP] * 4)
    assert told.metrics.request_max_num_generation_tokens.count == 2
    assert told.metrics.request_max_num_generation_tokens.buckets()[1] == 7 + 2


def test_samples_of_a_prompt_have_the_same_queue_time() -> None:
    told = Told(n=2)
    told.give(0, 1, at=101.0, queue=0.25)
    told.give(1, 1, at=102.0)
    assert [told.progress.timings(sample) for sample in told.progress.samples] == [
        SampleTimings(0.25, 0.75, 0.0, 1),
        SampleTimings(0.25, 1.75, 0.0, 1),
    ]
    told.progress.finish([FinishReason.STOP] * 2)
    assert told.metrics.request_time_per_output_token.count == 0, "one token has no gaps"


def test_cached_tokens_and_accepted_drafts_are_in_the_log() -> None:
    told = Told((5, 5))
    for sample, num_accepted in ((0, 2), (0, 3), (1, 0)):
        output = GenerationOutput(
            0, (), None, 0, num_cached_tokens=4, num_accepted_tokens=num_accepted
        )
        told.progress.note_output(told.progress.samples[sample], output, 1)
    assert told.log_fields["cached_tokens"] == 8
    assert told.log_fields["accepted_draft_tokens"] == 5


# How texts end: stop strings, cancellation, refused prompts.


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("streamed", [False, True])
async def test_stop_string_ends_text_usage_and_generation(make_api, tokens_per_step, streamed):
    api = make_api("one two three", tokens_per_step=tokens_per_step)
    body = {**BODY, "stop": ["xyz", "two"]}
    if streamed:
        events = await api.stream(V1, {**body, "stream_options": {"include_usage": True}})
        assert texts(events) == {0: "one "}
        choice, usage = events[-3]["choices"][0], events[-2]["usage"]
    else:
        _, answer = await api.post(V1, body)
        choice, usage = answer["choices"][0], answer["usage"]
        assert choice["text"] == "one "
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "two"
    assert usage["completion_tokens"] == len("one two"), "nothing past the stop is counted"
    assert api.backend.stats().num_running == 0
    if tokens_per_step < 100:
        assert (api.backend.submitted[0].request_id, 0) in api.backend.aborted


@pytest.mark.parametrize("tokens_per_step", [1, 100])
@pytest.mark.parametrize(
    ("min_tokens", "text"), [(4, "one "), (7, "one two "), (11, "one two two")]
)
async def test_stop_string_within_min_tokens_is_passed_over(
    make_api, tokens_per_step, min_tokens, text
):
    api = make_api("one two two", tokens_per_step=tokens_per_step)
    _, answer = await api.post(V1, {**BODY, "stop": "two", "min_tokens": min_tokens})
    assert answer["choices"][0]["text"] == text
    assert answer["choices"][0]["stop_reason"] == ("two" if min_tokens < 11 else None)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "counted"),
    [
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 50}, "completion_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES}, "completion_tokens"),
        ("/v3/chat/completions", {"messages": MESSAGES}, "completion_tokens"),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 50}, "output_tokens"),
        ("/api/chat", {"messages": MESSAGES}, "eval_count"),
        ("/api/generate", {"prompt": "Hi"}, "eval_count"),
    ],
)
@pytest.mark.parametrize("stop", ["foo ", "o \n ", "a <"])
async def test_usage_ends_with_the_stop_string(make, path, fields, counted, stop, streamed):
    api = make("a foo \n \n bar a <b> foo")
    end = "a foo \n \n bar a <b> foo".index(stop) + len(stop)
    body = {"model": "fake", "stream": streamed, **fields}
    if path.startswith("/api/"):
        body["options"] = {"stop": [stop]}
    else:
        body["stop_sequences" if path == "/v1/messages" else "stop"] = [stop]
    if streamed and "stop" in body:
        body["stream_options"] = {"include_usage": True}
    stream = FakeStream()
    response = await api.call("POST", path, body, stream)
    if response is not None:
        answers = [json.loads(response.body)]
    else:
        answers = stream.lines if path.startswith("/api/") else stream.events
    found = [value for one in answers if one != "[DONE]" for value in _find(one, counted)]
    assert found[-1] == end


def _find(value, name):
    """Yields the values of all members with this name."""
    if isinstance(value, dict):
        yield from (member for key, member in value.items() if key == name)
        for member in value.values():
            yield from _find(member, name)


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        (V1, {}, "one "),
        (V1, {"include_stop_str_in_output": True}, "one two"),
        (V1, {"stream": True}, "one "),
        (V1, {"stream": True, "include_stop_str_in_output": True}, "one two"),
        (V3, {}, "one "),
        (V3, {"include_stop_str_in_output": True}, "one two"),
        (V3, {"stream": True}, "one two"),
        (V3, {"stream": True, "include_stop_str_in_output": True}, "one two"),
    ],
)
async def test_stop_string_is_in_the_text_if_the_request_or_an_ovms_stream_includes_it(
    make_api, path, fields, text
):
    api = make_api("one two three")
    body = {**BODY, "stop": "two", **fields}
    if fields.get("stream"):
        assert texts(await api.stream(path, body)) == {0: text}
    else:
        _, answer = await api.post(path, body)
        assert answer["choices"][0]["text"] == text


@pytest.mark.parametrize(
    ("scripts", "stop", "found"),
    [
        ([b"one two", b"three"], "ne", [("o", "ne"), ("three", None)]),
        ([b"a\xc3"] * 2, "\ufffd", [("a", "\ufffd")] * 2),
    ],
    ids=["in one of two samples", "in the bytes of no character at the end"],
)
async def test_stop_string_ends_its_sample_alone(make_api, scripts, stop, found):
    api = make_api(lambda request, index: scripts[index])
    _, answer = await api.post(V1, {**BODY, "stop": stop, "n": 2})
    assert [(choice["text"], choice["stop_reason"]) for choice in answer["choices"]] == found


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancellation_frees_the_backend(make_api, streamed):
    api = make_api("hello")
    api.backend.paused = True
    body = {**BODY, "prompt": ["a", "b"], "stream": streamed}
    task = asyncio.create_task(api.call("POST", V1, body, FakeStream()))
    await api.backend.received.wait()
    assert api.backend.stats().num_running == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert api.backend.stats().num_running == 0


async def test_refused_prompt_cancels_the_others_of_its_request(make_api):
    api = make_api()
    api.backend.paused = True
    submit = api.backend.submit

    def refuse_second(request, on_output):
        if api.backend.submitted:
            raise RequestError("too long for the cache", param="prompt")
        submit(request, on_output)

    api.backend.submit = refuse_second
    status, _ = await api.post(V1, {**BODY, "prompt": ["a", "b"]})
    assert status == 400
    assert api.backend.stats().num_running == 0


# Every endpoint with a single prompt runs it, parses its text and logs it.


__all__ = ["make"]


# The error of a client whose generation is cut off.


REFUSAL = Refusal("too long", "prompt", "context_length_exceeded")


def ended(reason: FinishReason, error: str | None = None, refusal: Refusal | None = None):
    return GenerationOutput(0, (), reason, 0, error=error, refusal=refusal)


@pytest.mark.parametrize(
    ("output", "kind", "message"),
    [
        (ended(FinishReason.ABORT), BackendUnavailable, "shutting down"),
        (ended(FinishReason.ERROR), EngineFailed, "generation failed"),
        (ended(FinishReason.ERROR, error="gone"), EngineFailed, "gone"),
        (ended(FinishReason.ERROR, refusal=REFUSAL), RequestError, "long"),
    ],
)
def test_failure_has_the_reason_of_the_backend(
    output: GenerationOutput, kind: type[Exception], message: str
) -> None:
    error = failure(output)
    assert type(error) is kind
    assert message in str(error)
    if isinstance(error, RequestError):
        assert (error.param, error.code) == ("prompt", "context_length_exceeded")
