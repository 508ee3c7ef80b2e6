"""Every wrong value is refused with an error that names its field, in both dialects."""

from __future__ import annotations

import json
import random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.config import ApiConfig, ModelLimits
from tests.fakes import FakeStream

V1 = "/v1/completions"
V3 = "/v3/completions"
BODY = {"model": "fake", "prompt": "ab"}


def nested(depth: int) -> bytes:
    """A body of `depth` levels, the outermost object included."""
    return b'{"model":"fake","prompt":"ab","x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


MALFORMED = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"prompt"',
    b"17",
    b"prompt=hello",
    b'{"prompt": "a"} trailing',
    b'{"prompt": "a",}',
    b"{'prompt': 'a'}",
    b'{"model":"fake","prompt":"\xff"}',
    b'{"model":"fake","prompt":"ab","unknown":"\xff"}',
    b'{"model":"fake","prompt":"\\ud800"}',
    b'{"model":"fake","prompt":"\x00"}',
    nested(101),
    nested(500),
    nested(5000),
    b"[" * 200_000,
    b'{"a":' * 200_000,
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:40]))
async def test_malformed_body(make_api, body):
    status, answer = await make_api().post(V1, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert "body" in answer["error"]["message"]
    for path in (V3, "/v3/v1/completions"):
        status, answer = await make_api().post(path, body)
        assert status == 412
        assert isinstance(answer["error"], str)


async def test_nesting_up_to_the_limit_is_accepted(make_api):
    for path in (V1, V3):
        status, _ = await make_api().post(path, nested(100))
        assert status == 200
        brackets = {**BODY, "prompt": '{[\\"' * 5 + '"[[' * 5, "x": [[]] * 200, "max_tokens": 1}
        status, answer = await make_api().post(path, brackets)
        assert status == 200, answer


NUMBER = ["1", True, [], {}]
INTEGER = [*NUMBER, 1.5, 5.0]
BOOLEAN = ["yes", "true", 0, 1, [], {}]
WRONG: dict[str, list[object]] = {
    "prompt": [None, 5, True, {}, "", [], [""], [[]], ["a", ""], [[1], []], [1, "a"], ["a", [1]],
               [None], [True], [1.5], [-1], [257], [10**30], [[0, 999]], [["a"]], [[[1]]]],
    "max_tokens": [*INTEGER, -1, 0, 2**32, 10**30, 1e300],
    "temperature": [*NUMBER, -0.1, 2.1, 10**30, -(10**400)],
    "top_p": [*NUMBER, -0.1, 0, 1.1],
    "top_k": [*INTEGER, -2, -(10**30)],
    "min_p": [*NUMBER, -0.1, 1.1],
    "seed": [*INTEGER, 2**63, -(2**63) - 1, 10**30, 10**400],
    "n": [*INTEGER, 0, -1, 1025, 10**30],
    "best_of": [*INTEGER, 0, -1, 1025, 10**30],
    "stop": [5, True, {}, "", [""], ["a", ""], [1], [None], [["a"]], "x" * 1025, ["x"] * 257],
    "stream": BOOLEAN,
    "stream_options": [5, True, [], "include_usage", {"include_usage": True}],
    "echo": BOOLEAN,
    "ignore_eos": BOOLEAN,
    "include_stop_str_in_output": BOOLEAN,
    "skip_special_tokens": BOOLEAN,
    "add_special_tokens": BOOLEAN,
    "model": [5, True, [], {}],
    "frequency_penalty": [*NUMBER, -2.1, 2.1, 10**30],
    "presence_penalty": [*NUMBER, -2.1, 2.1, 10**30],
    "repetition_penalty": [*NUMBER, 0, -1, 1e39, 1e-300, 10**300],
    "logit_bias": [5, [], {"5": "x"}, {"5": None}, {"5": 101}, {"5": -100.5}, {"a": 1}, {"": 1},
                   {"-1": 1}, {"257": 1}, {"05": 1}, {" 5": 1}, {"5.0": 1}, {"\u0665": 1},
                   {"9" * 5000: 1}],
    "logprobs": [*INTEGER, -1, 21, 10**30],
    "prompt_logprobs": [*INTEGER, -1, 21, 10**30],
    "suffix": [5, "tail"],
    "use_beam_search": BOOLEAN,
    "length_penalty": [*NUMBER, -21, 21, 10**30],
    "early_stopping": ["yes", 1, 0.5, [], {}],
    "num_beam_groups": [*INTEGER, 0, -1],
    "diversity_penalty": [*NUMBER, -0.1, 101],
    "allowed_token_ids": [5, "1", [], ["a"], [1.5], [True], [-1], [257], [0, 10**30]],
    "bad_words": ["a", 5, [1], [""], ["a", ""], ["x" * 1025], ["x"] * 257],
    "stop_token_ids": [5, "1", ["a"], [1.5], [True], [-1], [257], [0, 10**30]],
    "min_tokens": [*INTEGER, -1, 63, 2**32],
    "truncate_prompt_tokens": [*INTEGER, 0, -2, 65, 10**30],
    "truncation_side": [5, True, "middle", ""],
    "return_token_ids": BOOLEAN,
    "return_tokens_as_token_ids": BOOLEAN,
    "spaces_between_special_tokens": BOOLEAN,
    "num_assistant_tokens": [*INTEGER, -1, 2**32],
    "assistant_confidence_threshold": [*NUMBER, -0.1, 1.1],
    "max_ngram_size": [*INTEGER, 0, -1, 2**32],
    "priority": [*INTEGER, 2**63, -(2**63) - 1],
    "cache_salt": [5, "", "a/b", "a@b", "a\\b", "a\0b", "x" * 129],
    "request_id": [5, "", "x" * 257],
    "prompt_embeds": ["AAAA"],
    "logprob_token_ids": [5, [1]],
    "thinking_token_budget": ["1", 5],
    "response_format": [5, "json", [], {}, {"type": 5}, {"type": "xml"}, {"type": "json_schema"},
                        {"type": "json_schema", "json_schema": 5},
                        {"type": "json_schema", "json_schema": {}},
                        {"type": "json_schema", "json_schema": {"schema": "{}"}},
                        {"type": "json_schema", "json_schema": {"schema": {}, "name": 5}},
                        {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}},
                        {"type": "json_schema", "json_schema": {"schema": {"type": "bad"}}},
                        {"type": "structural_tag"}, {"type": "structural_tag", "format": 5},
                        {"type": "structural_tag", "structures": [], "triggers": 5},
                        {"type": "regex"}, {"type": "regex", "pattern": ""},
                        {"type": "regex", "pattern": "bad"}, {"type": "grammar", "grammar": 5},
                        {"type": "const_string", "value": [1]}],
    "structured_outputs": [5, [], {}, {"json": 5}, {"json": "bad"}, {"regex": 5}, {"regex": ""},
                           {"choice": "a"}, {"choice": []}, {"choice": [""]}, {"choice": [1]},
                           {"grammar": {}}, {"grammar": "x" * 300_000}, {"json_object": "yes"},
                           {"structural_tag": 5}, {"regex": "a", "choice": ["a"]},
                           {"json_object": True, "json": {}}, {"unknown": 1},
                           {"regex": "a", "whitespace_pattern": " "},
                           {"json": {}, "disable_additional_properties": True},
                           {"json": {}, "disable_any_whitespace": 1}],
    "repetition_detection": [5, "on", [], {}, {"max_pattern_size": 5}],
    "stream_interval": [*INTEGER, 0, -1, 2, 10**30],
    "kv_transfer_params": [5, "on", [], {}, {"do_remote_decode": True}],
    "ec_transfer_params": [5, "on", [], {}, {"a": 1}],
    "vllm_xargs": [5, "a", [], {"a": True}, {"a": {}}, {"a": [[]]}],
    "session_id": [5, True, [], {}],
    "user": [5, True, [], {}],
    "guided_json": [5, [], "bad", {"type": "bad"}],
    "guided_json_object": BOOLEAN,
    "guided_regex": [5, "", "bad"],
    "guided_choice": ["a", [], [1], [""], ["bad"]],
    "guided_grammar": [5, "", "bad"],
    "guided_whitespace_pattern": [5, " "],
}  # fmt: skip
CASES = [(name, value) for name, values in WRONG.items() for value in values]
ONLY_V1 = [
    ("stream_options", {"include_usage": "yes"}),
    ("stream_options", {"include_usage": True, "continuous_usage_stats": 1}),
]
ONLY_V3 = [
    ("max_tokens", None),
    ("stream", None),
    ("model", None),
    ("min_p", 1),
    ("top_k", 0),
    ("seed", -1),
    ("seed", 2**32),
    ("stop", ["x"] * 17),
    ("best_of", 20),
]
OVMS_STREAMS = [
    ("best_of", 1),
    ("include_stop_str_in_output", False),
    ("stream_options", {"include_usage": True, "continuous_usage_stats": True}),
    ("stream_options", {"unknown": 1}),
    ("stream_options", {"include_usage": 1}),
]


def names(field: str, message: str, param: str | None = None) -> bool:
    return field in message and (param is None or param.startswith(field))


@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda value: repr(value)[:40])
async def test_wrong_value(make_api, field, value):
    body = {**BODY, field: value}
    api = make_api()
    for path, malformed in ((V1, 400), (V3, 412)):
        status, answer = await api.post(path, body)
        if path == V1:
            error = answer["error"]
            assert status == 400, answer
            assert error["type"] == "invalid_request_error"
            assert names(field, error["message"], error["param"]), error
        else:
            assert status == (malformed if field in ("model", "stream") else 400), answer
            assert names(field, answer["error"]), answer
    assert api.backend.submitted == []


@pytest.mark.parametrize(("field", "value"), ONLY_V1)
async def test_wrong_value_in_openais_streams(make_api, field, value):
    status, answer = await make_api().post(V1, {**BODY, "stream": True, field: value})
    assert (status, names(field, answer["error"]["message"])) == (400, True)


@pytest.mark.parametrize(("field", "value"), ONLY_V3)
async def test_wrong_value_for_ovms_alone(make_api, field, value):
    status, _ = await make_api().post(V1, {**BODY, field: value})
    assert status == 200 or (field, value) == ("stream", None)
    status, answer = await make_api().post(V3, {**BODY, field: value})
    assert status == (412 if field in ("model", "stream") else 400)
    assert names(field, answer["error"])


@pytest.mark.parametrize(("field", "value"), OVMS_STREAMS)
async def test_wrong_value_in_ovms_streams(make_api, field, value):
    status, answer = await make_api().post(V3, {**BODY, "stream": True, field: value})
    assert (status, names(field, answer["error"])) == (400, True)


async def test_model_must_be_named_for_ovms(make_api):
    status, answer = await make_api().post(V3, {"prompt": "a"})
    assert (status, names("model", answer["error"])) == (412, True)


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"temperature": "hot"}, 412, "model"),
        ({"model": 5, "temperature": "hot"}, 412, "model"),
        ({"temperature": "hot", "model": None}, 412, "model"),
        ({"model": "other", "temperature": "hot"}, 404, "other"),
        ({"model": "fake", "temperature": "hot"}, 400, "temperature"),
        ({"temperature": 3, "prompt": []}, 412, "model"),
        ({"stream": None}, 412, "model"),
    ],
)
async def test_the_model_is_the_first_fault_for_ovms(make_api, fields, status, named):
    found, answer = await make_api().post(V3, {"prompt": "a", **fields})
    assert (found, names(named, answer["error"])) == (status, True), answer


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (rb'{"prompt":"\ud800"}', r"a string has the lone surrogate \ud800"),
        (rb'{"prompt":"a\uDFFFb"}', r"a string has the lone surrogate \udfff"),
        (rb'{"prompt":"a","\ud83d":1}', r"a string has the lone surrogate \ud83d"),
        (rb'{"prompt":"\ud800",}', "the body is not valid JSON"),
        (rb'{"prompt":"\u12"}', "the body is not valid JSON"),
    ],
)
async def test_half_a_character_is_named(make_api, data, message):
    for path, status in ((V1, 400), (V3, 412)):
        found, answer = await make_api().post(path, data)
        text = answer["error"]["message"] if path == V1 else answer["error"]
        assert (found, message in text) == (status, True), text


CONTRADICTIONS = [
    ({"n": 3, "best_of": 2}, "n"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"use_beam_search": True, "n": 4, "num_beam_groups": 3}, "num_beam_groups"),
    ({"use_beam_search": True, "n": 4, "diversity_penalty": 1}, "diversity_penalty"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.5},
     "assistant_confidence_threshold"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"suffix": "tail", "echo": True}, "suffix"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "response_format"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json"),
    ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), CONTRADICTIONS)
async def test_fields_that_contradict_each_other(make_api, fields, named):
    api = make_api()
    for path in (V1, V3):
        status, answer = await api.post(path, {**BODY, **fields})
        message = answer["error"]["message"] if path == V1 else answer["error"]
        assert (status, named in message) == (400, True), message
    assert api.backend.submitted == []


async def test_limits_of_the_operator(make_api):
    limits = ModelLimits(max_tokens_limit=10, best_of_limit=4)
    api = make_api(limits=limits)
    for field, value in (("max_tokens", 10), ("best_of", 4)):
        status, answer = await api.post(V3, {**BODY, field: value})
        assert (status, names(field, answer["error"])) == (400, True)
        assert (await api.post(V3, {**BODY, field: value - 1}))[0] == 200
        assert (await api.post(V1, {**BODY, field: value}))[0] == 200
    await api.post(V3, BODY)
    await api.post(V1, {**BODY, "max_tokens": 50})
    assert [request.params.max_tokens for request in api.backend.submitted[-2:]] == [10, 10]


async def test_more_log_probabilities_where_the_operator_allows_them(make_api):
    for max_logprobs, allowed, refused in ((3, 3, 4), (-1, -1, -2), (0, 0, 1)):
        api = make_api(config=ApiConfig(max_logprobs=max_logprobs))
        for field in ("logprobs", "prompt_logprobs"):
            assert (await api.post(V1, {**BODY, field: allowed}))[0] == 200
            status, answer = await api.post(V1, {**BODY, field: refused})
            assert (status, answer["error"]["param"]) == (400, field)
    api = make_api(config=ApiConfig(max_logprobs=-1))
    status, answer = await api.post(V1, {**BODY, "logprobs": -1, "stream": True})
    assert (status, answer["error"]["param"]) == (400, "logprobs")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "frequency_penalty", "seed"])
async def test_numbers_that_are_none(make_api, text, field):
    body = json.dumps({**BODY, field: 0}).replace(f'"{field}": 0', f'"{field}": {text}').encode()
    status, answer = await make_api().post(V1, body)
    assert (status, answer["error"]["param"]) == (400, field)
    status, answer = await make_api().post(V3, body)
    assert (status, names(field, answer["error"])) == (400, True)


async def test_a_message_names_field_value_and_what_is_allowed(make_api):
    api = make_api()
    for body, message in (
        ({"temperature": "hot"}, 'temperature must be a number, not "hot"'),
        ({"temperature": 3}, "temperature must be at least 0 and at most 2, not 3.0"),
        ({"top_p": 0}, "top_p must be greater than 0 and at most 1, not 0.0"),
        ({"top_k": -2}, "top_k must be -1 or at least 0, not -2"),
        ({"stream": "yes"}, 'stream must be true or false, not "yes"'),
        ({"stop": ["a", 1]}, "stop[1] must be a string, not 1"),
        ({"stop": "x" * 2000}, "stop must be at most 1024 characters, not 2000"),
        ({"prompt": [1, 300]}, "prompt[1] must be a token id from 0 to 256, not 300"),
        ({"logit_bias": {"1": 2, "5": None}}, "logit_bias.5 must be a number, not null"),
        ({"logit_bias": {"9" * 50: True}}, f"logit_bias.{'9' * 20} must be a number, not true"),
        (
            {"vllm_xargs": {"a": {}}},
            "vllm_xargs.a must be a number or a string or an array, not {}",
        ),
        ({"echo": "x" * 100}, 'echo must be true or false, not "' + "x" * 56 + "..."),
    ):
        _, answer = await api.post(V1, {**BODY, **body})
        assert answer["error"]["message"] == message


async def test_unknown_model(make_api):
    for name in ("other", "", "x" * 100_000):
        status, answer = await make_api().post(V1, {**BODY, "model": name})
        assert status == 404
        assert answer["error"]["code"] == "model_not_found"
        assert answer["error"]["type"] == "not_found_error"
        assert len(answer["error"]["message"]) < 300
        status, answer = await make_api().post(V3, {**BODY, "model": name})
        assert (status, type(answer["error"])) == (404, str)


@pytest.mark.parametrize("prompt", ["x" * 64, [5] * 64, ["a", "x" * 64], [[1], [5] * 64]])
async def test_prompt_that_fills_the_context(make_api, prompt):
    status, answer = await make_api().post(V1, {**BODY, "prompt": prompt})
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == ("prompt[1]" if len(prompt) == 2 else "prompt")
    assert "64 tokens and one must be left to generate" in answer["error"]["message"]
    status, answer = await make_api().post(V3, {**BODY, "prompt": prompt})
    assert (status, "64 tokens" in answer["error"]) == (400, True)


@pytest.mark.parametrize("prompt", [[5] * 300_000, "x" * 300_000, ["a", [5] * 300_000], [5] * 65])
async def test_prompt_far_too_long(make_api, prompt):
    api = make_api()
    for path in (V1, V3):
        status, _ = await api.post(path, {**BODY, "prompt": prompt})
        assert status == 400
    assert api.backend.submitted == []


async def test_scoring_may_fill_the_context_but_not_exceed_it(make_api):
    body = {**BODY, "echo": True, "max_tokens": 0}
    for length, expected in ((64, 200), (65, 400)):
        status, _ = await make_api().post(V1, {**body, "prompt": "x" * length})
        assert status == expected


async def test_max_tokens_beyond_the_context(make_api):
    api = make_api()
    status, answer = await api.post(V3, {**BODY, "max_tokens": 63})
    assert status == 400
    assert "65 tokens (2 in the prompt and max_tokens 63)" in answer["error"]
    assert (await api.post(V3, {**BODY, "max_tokens": 62}))[0] == 200
    assert (await api.post(V1, {**BODY, "max_tokens": 63}))[0] == 200


async def test_bounded_number_of_prompts_and_choices(make_api):
    api = make_api(config=ApiConfig(max_prompts=4, max_choices=6))
    for fields, param in (
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": [[1]] * 5}, "prompt"),
        ({"prompt": ["a"] * 4, "n": 2}, "n"),
        ({"n": 7}, "n"),
    ):
        status, answer = await api.post(V1, {**BODY, **fields})
        assert (status, answer["error"]["param"]) == (400, param)
    assert (await api.post(V1, {**BODY, "prompt": ["a"] * 3, "n": 2}))[0] == 200


async def test_ten_thousand_random_bodies(make_api):
    """Bytes of every kind, from noise to bodies with one byte changed."""
    api = make_api("x")
    rng = random.Random(1)
    valid = orjson.dumps({**BODY, "n": 2, "temperature": 0.5, "stop": ["a"], "max_tokens": 3})
    for round_number in range(5000):
        if round_number % 2:
            body = rng.randbytes(rng.randrange(60))
        else:
            changed = bytearray(valid)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] = rng.choice(b'{}[]",:\\0-9eE.tfn\xff\x00 ')
            body = bytes(changed)
        for path in (V1, V3):
            response = await api.call("POST", path, body, FakeStream())
            assert response is None or response.status in (200, 400, 404, 412), body
    assert api.backend.stats().num_running == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(name=st.sampled_from(sorted(WRONG)), value=JSON, path=st.sampled_from([V1, V3]))
async def test_random_values_answer_or_name_the_field(make_api, name, value, path):
    """A field of any value is taken, or refused by its name."""
    api = make_api("x")
    body = json.dumps({**BODY, name: value}).encode()
    response = await api.call("POST", path, body, FakeStream())
    if response is None or response.status == 200:
        return
    assert response.status in (400, 404, 412)
    if response.status != 404:
        error = orjson.loads(response.body)["error"]
        message = error["message"] if path == V1 else error
        assert name in message or "body" in message
