"""Tests of `fastovms/parts/embeddings/embeddings.py`."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import pytest

from fastovms.errors import InvalidField, Overloaded, RequestError
from fastovms.params import Task
from fastovms.parts.embeddings.embeddings import (
    EmbeddingRequest,
    EncodingCall,
    TextLimit,
    normalized,
    read_limit,
    tokenize,
)
from fastovms.parts.embeddings.encoder import EncoderText
from fastovms.telemetry.tracing import EncodingFormat, GenerationKind
from tests.api.encoder_api import CLS, SEP, served_encoder
from tests.api.fake_tracer import FakeTracer


@pytest.mark.parametrize(
    ("path", "fields", "task"),
    [
        ("/embeddings", {"input": "a"}, Task.EMBEDDINGS),
        ("/rerank", {"query": "a", "documents": ["b"]}, Task.RERANK),
        ("/score", {"text_1": "a", "text_2": "b"}, Task.RERANK),
    ],
)
@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
@pytest.mark.parametrize(
    ("priority", "is_taken"),
    [(-5, True), (2**63 - 1, True), (2**63, False), (2**70, False), ("1", False)],
)
async def test_priority_must_be_a_64_bit_integer(
    make_encoder_api, path, fields, task, prefix, priority, is_taken
):
    api = make_encoder_api(served_encoder(task))
    body = {"model": "fake", **fields, "priority": priority}
    status, answer = await api.post(prefix + path, body)
    assert (status == 200) is is_taken, answer
    assert is_taken or "priority" in str(answer["error"])


# Metrics, the access log and traces of requests whose texts are encoded.


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
async def test_every_encoding_request_is_traced_once(
    make_encoder_api, path, body, kind, form, task
):
    tracer = FakeTracer()
    api = make_encoder_api(served_encoder(task), tracer=tracer)
    answer = await api.answer(path, {"model": "fake", **body})

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
    assert metrics.finished == {"stop": 1}
    assert metrics.e2e_request_latency.count == metrics.request_queue_time.count == 1
    assert metrics.request_queue_time.buckets()[1] == 0.25
    assert metrics.request_prefill_time.buckets()[1] == 0.5
    assert metrics.request_prompt_tokens.buckets()[1] == end.num_prompt_tokens


@pytest.mark.parametrize("traces", [True, False])
async def test_failed_request_ends_its_span_with_the_error(make_encoder_api, traces):
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


async def test_cancelled_encoding_is_aborted_in_log_and_span(make_served):
    served = make_served()
    span = FakeTracer().begin(None)

    async def wait(*_):
        await asyncio.Event().wait()

    served.backend.encode = wait
    fields = {}
    call = EncodingCall(served, client="me", priority=0, log_fields=fields, begin_span=lambda: span)
    task = asyncio.create_task(call.encode(TEXTS))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [end] = span.ends
    assert (end.finish_reasons, end.error, end.num_prompt_tokens) == (["abort"], None, 4)
    assert fields == {"prompt_tokens": 4}


@pytest.mark.parametrize(
    ("limit", "text", "kept"),
    [
        (TextLimit(3), "abc", "abc"),
        (TextLimit(3, truncates=True), "abcd", "abc"),
        (TextLimit(3, truncates=True, keeps_end=True), "abcd", "bcd"),
        (TextLimit(3, truncates=True), "a" * 10**6, "aaa"),
    ],
)
async def test_long_text_is_cut_without_tokenizing_the_rest(make_served, limit, text, kept):
    served = make_served()
    [token_ids] = await tokenize(served, [text], ["input"], limit, "me")
    assert bytes(token_ids.tolist()).decode() == kept
    assert sum(map(len, served.texts.calls[0])) < 1000  # the rest is never tokenized


@pytest.mark.parametrize(
    ("limit", "text", "kept"),
    [
        (TextLimit(10**6, truncates=True), "word " * 20_000, "word " * 20_000),
        (TextLimit(10**6, truncates=True, keeps_end=True), "word " * 20_000, "word " * 20_000),
        (TextLimit(50_000, truncates=True), "word " * 20_000, "word " * 10_000),
        (TextLimit(50_000, truncates=True, keeps_end=True), "word " * 20_000, "word " * 10_000),
        (TextLimit(10**6, truncates=True), ("<", "word " * 20_000), "<" + "word " * 20_000),
    ],
)
async def test_long_texts_are_tokenized_in_slices(make_served, limit, text, kept):
    """The tokenizer holds the GIL and would delay every stream."""
    served = make_served()
    [token_ids] = await tokenize(served, [text], ["input"], limit, "me")
    assert bytes(token_ids.tolist()).decode() == kept
    assert max(len(each) for call in served.texts.calls for each in call) <= 16_000
    assert sum(len(each) for call in served.texts.calls for each in call) < len(kept) + 16_000


async def test_long_text_of_few_tokens_is_tokenized_in_slices(make_served):
    served = make_served()
    encode = served.texts.encode
    served.texts.encode = lambda texts: encode([text.replace(" ", "") for text in texts])
    text = " " * 10**6 + "abcd"
    limit = TextLimit(3, truncates=True)
    [token_ids] = await tokenize(served, [text], ["input"], limit, "me")
    assert bytes(token_ids.tolist()) == b"abc"
    assert len(served.texts.calls) > 10**6 / 16_000
    with pytest.raises(InvalidField, match="4 tokens or more"):
        await tokenize(served, [" " * 16_100 + "abcd"], ["input"], TextLimit(3), "me")


@pytest.mark.parametrize("num_texts", [2, 100])
async def test_tokens_of_all_texts_have_a_limit(make_served, num_texts):
    served = make_served()
    names = [f"t{i}" for i in range(num_texts)]
    texts = ["ab"] * num_texts
    limit = TextLimit(3, max_together=2 * num_texts)
    assert len(await tokenize(served, texts, names, limit, "me")) == num_texts
    limit = TextLimit(3, max_together=2 * num_texts - 1)
    with pytest.raises(InvalidField, match=f"at most {2 * num_texts - 1} tokens") as caught:
        await tokenize(served, texts, names, limit, "me")
    assert caught.value.param == names[-1]


@pytest.mark.parametrize("text", ["ab", ("a", "b"), "a" * 20_000])
async def test_special_tokens_enclose_texts_and_no_token_ids(make_served, text):
    served = make_served()
    limit = TextLimit(10**6, truncates=True)
    found = await tokenize(served, [text, [1, 2]], ["t0", "t1"], limit, "me", encloses=True)
    assert found[0].tolist() == [CLS, *"".join(text).encode(), SEP]
    assert found[1].tolist() == [1, 2]


def test_zero_vector_is_normalized_to_zeros():
    rows = np.zeros((1, 3), np.float32)
    assert normalized(rows).tolist() == [[0, 0, 0]]


PREFIXES = ("/v1", "/v3", "/v3/v1")


def unit(*numbers: float) -> list[float]:
    vector = np.array(numbers, np.float32)
    return (vector / np.linalg.norm(vector)).tolist()


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("body", "rows", "num_tokens"),
    [
        ({"input": "ab"}, [unit(4, CLS + SEP + 195, SEP, 1)], 4),
        ({"input": ["a", "b"], "use_activation": False}, [[3, 610, 257, 1], [3, 611, 257, 1]], 6),
        ({"input": [1, 2], "use_activation": False}, [[2, 3, 2, 1]], 2),
        ({"input": [[1], [2, 3]], "use_activation": False}, [[1, 1, 1, 1], [2, 5, 3, 1]], 3),
        ({"input": "ab", "add_special_tokens": False}, [unit(2, 195, 98, 1)], 2),
        ({"input": "a" * 99, "truncate_prompt_tokens": -1}, [unit(64, 6527, SEP, 1)], 64),
        ({"input": "abcd", "truncate_prompt_tokens": 4, "use_activation": False},
         [[4, CLS + SEP + 195, SEP, 1]], 4),
        ({"input": "abcd", "truncate_prompt_tokens": 4, "truncation_side": "left",
          "use_activation": False}, [[4, CLS + SEP + 199, SEP, 1]], 4),
        ({"input": "ab", "dimensions": 2}, [unit(4, CLS + SEP + 195)], 4),
        ({"input": "ab", "dimensions": 2, "use_activation": False}, [[4, 708]], 4),
    ],
)  # fmt: skip
async def test_embeddings_follow_input_form_and_options(
    make_encoder_api, prefix, body, rows, num_tokens
):
    api = make_encoder_api(served_encoder())
    answer = await api.answer(f"{prefix}/embeddings", {"model": "fake", **body})
    assert answer["object"] == "list"
    assert answer["model"] == "fake"
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert [each["index"] for each in answer["data"]] == list(range(len(rows)))
    found = [each["embedding"] for each in answer["data"]]
    np.testing.assert_allclose(found, rows, rtol=1e-6)
    assert ("id" in answer) == (prefix == "/v1")


async def test_base64_has_the_bits_of_the_floats(make_encoder_api):
    api = make_encoder_api(served_encoder())
    body = {"model": "fake", "input": ["a", "bc"]}
    _, plain = await api.post("/v1/embeddings", body)
    _, packed = await api.post("/v1/embeddings", {**body, "encoding_format": "base64"})
    for one, other in zip(plain["data"], packed["data"], strict=True):
        vector = np.frombuffer(base64.b64decode(other["embedding"]), np.float32)
        assert vector.tolist() == np.array(one["embedding"], np.float32).tolist()


async def test_many_vectors_are_written_in_a_thread(make_encoder_api):
    api = make_encoder_api(served_encoder())
    texts = ["a" * (1 + i % 7) for i in range(600)]
    answer = await api.answer("/v1/embeddings", {"input": texts, "use_activation": False})
    assert [each["embedding"][0] for each in answer["data"]] == [3 + i % 7 for i in range(600)]
    assert max(map(len, api.served[0].texts.calls)) <= 64


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("input", None, "input is required"),
        ("input", [], "input must not be an empty list"),
        ("input", "", "input must not be an empty string"),
        ("input", ["a", ""], "input[1] must not be an empty string"),
        ("input", [[]], "input[0] must not be an empty list"),
        ("input", ["a", [1]], "not a mixture"),
        ("input", [1, 258], "input[1] must be a token id from 0 to 257, not 258"),
        ("input", [[1], [-1]], "input[1][0] must be a token id"),
        ("input", "a" * 63, "maximum context length is 64 tokens"),
        ("input", "a" * 64 * 256, "maximum context length is 64 tokens"),
        ("input", [1] * 63, "maximum context length is 64 tokens"),
        ("input", ["a"] * 9, "input must have at most 8 entries, not 9"),
        ("input", "a\ud800", "lone surrogate"),
        ("input", 5, "input"),
        ("messages", [{"role": "user", "content": "a"}], "messages is not supported"),
        ("encoding_format", "bytes", 'encoding_format must be "float" or "base64", not "bytes"'),
        ("dimensions", 5, "dimensions must be from 1 to 4, the dimensions of fake, not 5"),
        ("dimensions", 0, "dimensions must be from 1 to 4"),
        ("embed_dtype", "float16", 'embed_dtype must be "float32", not "float16"'),
        ("endianness", "big", 'endianness must be "native" or "little", not "big"'),
        ("truncate_prompt_tokens", 0, "truncate_prompt_tokens must be -1 or from 1 to 64"),
        ("truncate_prompt_tokens", 65, "truncate_prompt_tokens must be -1 or from 1 to 64"),
        ("truncate_prompt_tokens", 2, "truncate_prompt_tokens must be more than 2"),
        ("truncation_side", "top", 'truncation_side must be "left" or "right"'),
        ("request_id", "a b", "request_id must have 1 to 256 visible ASCII characters"),
    ],
)
async def test_wrong_embedding_field_value_is_refused(make_encoder_api, field, value, words):
    api = make_encoder_api(served_encoder(max_inputs=8))
    body = {"input": "a", field: value}
    if field == "messages":
        del body["input"]
    if isinstance(value, str) and "\ud800" in value:
        body = b'{"input": "a\\ud800"}'
    status, answer = await api.post("/v1/embeddings", body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert api.served[0].backend.encoded == []


async def test_operator_sets_instruction_truncation_and_normalization(make_encoder_api):
    served = served_encoder(normalize=False, truncate=True, document_instruction="q:")
    api = make_encoder_api(served)
    _, answer = await api.post("/v1/embeddings", {"input": ["ab", "c" * 1000]})
    assert [each["embedding"][0] for each in answer["data"]] == [6, 64]
    assert answer["usage"]["prompt_tokens"] == 70


async def test_model_of_another_task_is_refused(make_api, make_encoder_api):
    chat = next(iter(make_api().context.models))
    api = make_encoder_api(served_encoder(), served_encoder(Task.RERANK, name="r"), models=[chat])
    status, answer = await api.post("/v1/embeddings", {"input": "a", "model": "r"})
    assert (status, answer["error"]["param"]) == (400, "model")
    assert "it scores pairs of texts" in answer["error"]["message"]
    messages = [{"role": "user", "content": "a"}]
    status, answer = await api.post("/v1/chat/completions", {"messages": messages, "model": "r"})
    assert (status, answer["error"]["param"]) == (400, "model")
    status, answer = await api.post("/v3/chat/completions", {"messages": messages, "model": "r"})
    assert (status, "it scores pairs of texts" in answer["error"]) == (412, True)


async def test_text_without_a_token_is_refused_by_its_name(make_served):
    def encode(texts):
        raise RequestError("no character")

    served = make_served()
    served.texts.encode = encode
    with pytest.raises(InvalidField, match="t0 has a lone surrogate"):
        await tokenize(served, ["\ud800" * 20_000], ["t0"], TextLimit(3, truncates=True), "me")
    with pytest.raises(InvalidField, match="is too short for any text"):
        read_limit(EmbeddingRequest(), make_served(max_model_len=2), 2)
