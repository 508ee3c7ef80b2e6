"""Tests that every field's valid values are accepted, alone and together, in both dialects."""

from __future__ import annotations

import json
from collections.abc import Collection

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.params import SamplingFields
from fastovms.request_fields import rows_of
from tests.fakes import ByteTokenizer, FakeStream

V1 = "/v1/completions"
V3 = "/v3/completions"
BODY = {"model": "fake", "prompt": "ab"}
FLAG = [True, False, None]
VALID: dict[str, list[object]] = {
    **{
        name: [*row.examples("ovms").taken, None]
        for name, row in rows_of(SamplingFields).items()
    },
    "prompt": ["a", "é" * 20, ["a"], ["a", "b"], [1, 256], [[1], [2, 3]]],
    "max_tokens": [1, 62],
    "n": [1, 2, None],
    "best_of": [1, 3, 19, None],
    "stop": ["a", "x" * 1024, [], ["a"] * 16, None],
    "stream_options": [None],
    "echo": FLAG,
    "ignore_eos": FLAG,
    "include_stop_str_in_output": [True, None],
    "skip_special_tokens": FLAG,
    "spaces_between_special_tokens": FLAG,
    "add_special_tokens": FLAG,
    "logit_bias": [{}, {"0": -100, "256": 100}, {"5": 0.5}, None],
    "logprobs": [0, 1, 20, None],
    "prompt_logprobs": [0, None],
    "suffix": ["", None, "tail"],
    "use_beam_search": FLAG,
    "early_stopping": [True, False, "never", None],
    "num_beam_groups": [1, None],
    "diversity_penalty": [0, None],
    "allowed_token_ids": [[0], [256, 256, 1], None],
    "bad_words": [[], ["a", " b", "long phrase"], ["x"] * 256, None],
    "stop_token_ids": [[], [0, 256], None],
    "min_tokens": [0, 1, None],
    "truncate_prompt_tokens": [-1, 1, 64, None],
    "truncation_side": ["left", "right", None],
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
    "num_assistant_tokens": [0, 1, 2**32 - 1, None],
    "assistant_confidence_threshold": [None],
    "max_ngram_size": [1, 2**32 - 1, None],
    "priority": [0, -(2**63), 2**63 - 1, None],
    "cache_salt": ["a", "x" * 128, None],
    "request_id": ["a", "x" * 256, None],
    "response_format": [{"type": "text"}, None],
    "guided_json": [{}, "{}", None],
    "json_schema": [{}, "{}", None],
    "grammar": ['root ::= "a"', "", None],
    "regex": ["a", None],
    "ebnf": ['root ::= "a"', None],
    "user": ["me", "", None],
    "session_id": ["s", None],
    "repetition_detection": [{}, {"max_pattern_size": 3, "min_count": 2}, None],
    "stream_interval": [1, None],
    "kv_transfer_params": [None],
    "ec_transfer_params": [None],
    "vllm_xargs": [{}, {"a": "b", "c": 1, "d": [1.5, "e"]}, None],
    "guided_decoding_backend": ["outlines"],
    "unknown": [{"a": [1]}],
}  # fmt: skip
CASES = [(name, value) for name, values in VALID.items() for value in values]


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("path", [V1, V3])
async def test_valid_field_value_is_accepted(make_api, path, field, value):
    fim = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}
    status, answer = await make_api("z", tokenizer=ByteTokenizer(**fim)).post(
        path, {**BODY, field: value}
    )
    assert status == 200, answer
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.slow
@given(
    fields=st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in VALID.items()}
    ),
    path=st.sampled_from([V1, V3]),
    streamed=st.booleans(),
)
async def test_fields_together_are_taken_or_named(make_api, fields, path, streamed):
    """Some valid values contradict each other: the message then names one of the fields."""
    body = {**BODY, **fields, "stream": streamed}
    await check_answer_or_named_fault(make_api("zyx!"), path, body, (*fields, "prompt"))


async def check_answer_or_named_fault(api, path: str, body: dict, names: Collection[str]) -> None:
    """Checks that a request gets an answer, or an error that names one of these fields or
    `max_tokens`."""
    stream = FakeStream()
    response = await api.call("POST", path, json.dumps(body).encode(), stream)
    assert api.backend.stats().num_running == 0
    if response is None:
        assert stream.events[-1] == "[DONE]"
        assert not any("error" in event for event in stream.events[:-1])
    elif response.status == 200:
        assert not body["stream"]
        assert orjson.loads(response.body)["usage"]["prompt_tokens"] > 0
    else:
        assert response.status == 400, response.body
        error = orjson.loads(response.body)["error"]
        message = error["message"] if path.startswith("/v1/") else error
        assert any(name in message for name in (*names, "max_tokens")), message
