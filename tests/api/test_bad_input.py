"""Tests that every wrong value is refused with an error that names its field, in both dialects."""

from __future__ import annotations

import json

import pytest

from tests.api.completion_requests import BODY, V1, V3
from tests.api.wrong_values import WRONG, names


def nested(depth: int) -> bytes:
    """Returns a body of `depth` levels, including the outermost object."""
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
    b'{"model":"fake","prompt":"ab","unknown":NaN}',
    b'{"model":"fake","prompt":"ab","unknown":{"a":[1,-Infinity]}}',
    b'{"prompt":"ab","top_p":NaN}',
    nested(101),
    nested(500),
    nested(5000),
    b"[" * 200_000,
    b'{"a":' * 200_000,
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:40]))
async def test_malformed_body_is_a_400_and_a_412_for_ovms(make_api, body):
    status, answer = await make_api().post(V1, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert "body" in answer["error"]["message"]
    for path in (V3, "/v3/v1/completions"):
        status, answer = await make_api().post(path, body)
        assert status == 412
        assert isinstance(answer["error"], str)


@pytest.mark.parametrize("rest", [b"", b',"x":NaN}', b',"x":}'])
async def test_no_field_is_at_fault_in_what_ovms_cannot_parse(make_api, rest):
    status, answer = await make_api().post(V3, b'{"model":"fake","temperature":"hot"' + rest)
    assert (status, names("body", answer["error"])) == (412, True)


async def test_nesting_up_to_the_limit_is_accepted(make_api):
    for path in (V1, V3):
        await make_api().answer(path, nested(100))
        brackets = {**BODY, "prompt": '{[\\"' * 5 + '"[[' * 5, "x": [[]] * 200, "max_tokens": 1}
        await make_api().answer(path, brackets)


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


@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda value: repr(value)[:40])
async def test_wrong_field_value_is_refused_by_name(make_api, field, value):
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
    ({"json_schema": {}, "grammar": 'root ::= "a"'}, "json_schema and grammar"),
    ({"regex": "a", "ebnf": 'root ::= "a"', "guided_regex": "a"}, "ebnf"),
    ({"json_schema": {"title": "a"}, "guided_json": {}}, "json_schema"),
    ({"guided_choice": [""]}, "guided_choice[0] must not be an empty string"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), CONTRADICTIONS)
async def test_fields_that_contradict_each_other(make_api, fields, named):
    api = make_api()
    for path in (V1, V3):
        status, answer = await api.post(path, {**BODY, **fields})
        message = answer["error"]["message"] if path == V1 else answer["error"]
        assert (status, named in message) == (400, True), message
    assert api.backend.submitted == []


@pytest.mark.parametrize(
    ("text", "of_ovms"),
    [("NaN", 412), ("Infinity", 412), ("-Infinity", 412), ("1e999", 400), ("-1e999", 400)],
)
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "frequency_penalty", "seed"])
async def test_number_that_is_not_finite_is_refused_by_name(make_api, text, of_ovms, field):
    """Some are not valid JSON, and others exceed the range of a float."""
    body = json.dumps({**BODY, field: 0}).replace(f'"{field}": 0', f'"{field}": {text}').encode()
    status, answer = await make_api().post(V1, body)
    assert (status, answer["error"]["param"]) == (400, field)
    status, answer = await make_api().post(V3, body)
    assert (status, names(field, answer["error"])) == (of_ovms, True)


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


async def test_unknown_model_is_a_404_with_a_short_message(make_api):
    for name in ("other", "", "x" * 100_000):
        status, answer = await make_api().post(V1, {**BODY, "model": name})
        assert status == 404
        assert answer["error"]["code"] == "model_not_found"
        assert answer["error"]["type"] == "not_found_error"
        assert len(answer["error"]["message"]) < 300
        status, answer = await make_api().post(V3, {**BODY, "model": name})
        assert (status, type(answer["error"])) == (404, str)
