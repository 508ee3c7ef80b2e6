"""What metrics, the access log and traces are told of requests whose texts are encoded."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from fastovms.api.embeddings.encoding_call import EncodingCall
from fastovms.encoding import EncoderText, Task
from fastovms.errors import Overloaded
from fastovms.telemetry.tracing import EncodingFormat, GenerationKind
from tests.api.encoder_api import served_encoder
from tests.api.fake_tracer import FakeTracer

TEXTS = [EncoderText(np.array([1, 2, 3])), EncoderText(np.array([4]))]
KINDS = GenerationKind
RERANK = {"query": "a", "documents": ["b", "c"]}
SCORE = {"text_1": "a", "text_2": ["b", "c"]}


@pytest.mark.parametrize(
    ("path", "body", "kind", "form", "task"),
    [
        ("/v1/embeddings", {"input": "a", "dimensions": 2, "encoding_format": "base64"},
         KINDS.EMBEDDINGS, EncodingFormat(2, "base64"), Task.EMBEDDINGS),
        ("/v3/embeddings", {"input": ["a", "b"]}, KINDS.EMBEDDINGS, EncodingFormat(),
         Task.EMBEDDINGS),
        ("/api/embed", {"input": "a"}, KINDS.EMBEDDINGS, None, Task.EMBEDDINGS),
        ("/api/embeddings", {"prompt": "a"}, KINDS.EMBEDDINGS, None, Task.EMBEDDINGS),
        ("/v1/rerank", RERANK, KINDS.RERANK, None, Task.RERANK),
        ("/v3/rerank", RERANK, KINDS.RERANK, None, Task.EMBEDDINGS),
        ("/v1/score", SCORE, KINDS.SCORE, None, Task.RERANK),
        ("/v1/score", SCORE, KINDS.SCORE, None, Task.EMBEDDINGS),
    ],
)  # fmt: skip
async def test_every_request_is_told_of_once(make_encoder_api, path, body, kind, form, task):
    tracer = FakeTracer()
    api = make_encoder_api(served_encoder(task), tracer=tracer)
    status, answer = await api.post(path, {"model": "fake", **body})
    assert status == 200, answer

    start, end = tracer.only
    assert (start.kind, start.form, start.params) == (kind, form, None)
    assert (start.request_id, start.asked_model, start.model) == ("req-1", "fake", "fake")
    assert start.response_id == answer.get("id", "")
    assert (list(end.finish_reasons), end.error) == ([], None)
    assert (end.num_cached_tokens, end.num_generated_tokens) == (None, None)
    queue, prefill = end.phases
    assert (queue.name, prefill.name) == ("queue", "prefill")
    assert queue.age - prefill.age == pytest.approx(0.25)
    assert api.last_request.trace == tracer.spans[0].context

    fields = api.last_request.log_fields
    assert (fields["prompt_tokens"], fields["queue_ms"]) == (end.num_prompt_tokens, 250.0)
    metrics = api.metrics
    assert metrics.e2e_request_latency.count == metrics.request_queue_time.count == 1
    assert metrics.request_prompt_tokens.buckets()[1] == end.num_prompt_tokens


@pytest.mark.parametrize("traces", [True, False])
async def test_what_fails_is_told_as_that(make_encoder_api, traces):
    tracer = FakeTracer() if traces else None
    api = make_encoder_api(served_encoder(), tracer=tracer)
    api.backend.error = Overloaded("too many wait")
    status, _ = await api.post("/v1/embeddings", {"model": "fake", "input": "a"})
    assert status == 429
    assert api.metrics.e2e_request_latency.count == 0
    if tracer is not None:
        _, end = tracer.only
        assert end.error == ("Overloaded", "too many wait")
        assert [phase.name for phase in end.phases] == ["queue"]


async def test_what_the_client_does_not_wait_for_is_aborted():
    served = served_encoder()
    span = FakeTracer().begin(None)

    async def wait(*_):
        await asyncio.Event().wait()

    served.backend.encode = wait
    fields = {}
    call = EncodingCall(served, "me", fields, lambda: span)
    task = asyncio.create_task(call.encode(TEXTS, 0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [end] = span.ends
    assert (end.finish_reasons, end.error, end.num_prompt_tokens) == (["abort"], None, 4)
    assert fields == {"prompt_tokens": 4}
    served.tokenizing.close()
