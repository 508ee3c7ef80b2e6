from __future__ import annotations

import base64

import numpy as np
import pytest

from fastovms.encoding import Task
from fastovms.errors import Overloaded
from tests.api.encoder_api import CLS, SEP, served_encoder

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
        ({"input": "abcd", "truncate_prompt_tokens": 4, "use_activation": False},
         [[4, CLS + SEP + 195, SEP, 1]], 4),
        ({"input": "abcd", "truncate_prompt_tokens": 4, "truncation_side": "left",
          "use_activation": False}, [[4, CLS + SEP + 199, SEP, 1]], 4),
        ({"input": "ab", "dimensions": 2}, [unit(4, CLS + SEP + 195)], 4),
        ({"input": "ab", "dimensions": 2, "use_activation": False}, [[4, 708]], 4),
    ],
)  # fmt: skip
async def test_vectors(make_encoder_api, prefix, body, rows, num_tokens):
    api = make_encoder_api(served_encoder())
    status, answer = await api.post(f"{prefix}/embeddings", {"model": "fake", **body})
    assert status == 200, answer
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
    status, answer = await api.post("/v1/embeddings", {"input": texts, "use_activation": False})
    assert status == 200
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
        ("messages", [{"role": "user", "content": "a"}], "messages cannot be embedded"),
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
async def test_wrong_values(make_encoder_api, field, value, words):
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


async def test_instructions_and_operators_wishes(make_encoder_api):
    served = served_encoder(normalize=False, truncate=True, document_instruction="q:")
    api = make_encoder_api(served)
    _, answer = await api.post("/v1/embeddings", {"input": ["ab", "c" * 1000]})
    assert [each["embedding"][0] for each in answer["data"]] == [6, 64]
    assert answer["usage"]["prompt_tokens"] == 70


async def test_clients_are_told_of_overload(make_encoder_api):
    api = make_encoder_api(served_encoder())
    api.served[0].backend.error = Overloaded("too many")
    assert (await api.post("/v1/embeddings", {"input": "a"}))[0] == 429


async def test_models_of_other_tasks(make_api, make_encoder_api):
    chat = next(iter(make_api().context.models))
    api = make_encoder_api(served_encoder(), served_encoder(Task.RERANK, name="r"), models=[chat])
    name = chat.info.name
    if name == "fake":
        name = None
    status, answer = await api.post("/v1/embeddings", {"input": "a", "model": "r"})
    assert (status, answer["error"]["param"]) == (400, "model")
    assert "it scores pairs of texts" in answer["error"]["message"]
    messages = [{"role": "user", "content": "a"}]
    status, answer = await api.post("/v1/chat/completions", {"messages": messages, "model": "r"})
    assert (status, answer["error"]["param"]) == (400, "model")
    body = {"messages": messages, "model": "r"}
    status, answer = await api.post("/v3/chat/completions", body)
    assert status == 412
    assert "it scores pairs of texts" in answer["error"]


async def test_what_is_counted(make_encoder_api):
    api = make_encoder_api(served_encoder())
    await api.post("/v1/embeddings", {"input": ["a", "b"]})
    assert api.last_request.log_fields["prompt_tokens"] == 6
    assert api.metrics.finished == {"stop": 1}
    assert api.metrics.request_prompt_tokens.buckets()[1] == 6
    assert api.metrics.request_queue_time.buckets()[1] == 0.25
    assert api.metrics.request_prefill_time.buckets()[1] == 0.5
