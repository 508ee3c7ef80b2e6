"""The forms of a constraint on the text, and what the backend gets for each."""

from __future__ import annotations

import json

import pytest

from fastovms.config.api_config import ApiConfig
from fastovms.params import GrammarKind

V1 = "/v1/completions"
V3 = "/v3/completions"
BODY = {"model": "fake", "prompt": "ab"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OPEN = {**SCHEMA, "additionalProperties": True}
PATTERNS = {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
TAG_FORMAT = {
    "type": "triggered_tags",
    "triggers": ["<f"],
    "tags": [
        {
            "begin": "<f>",
            "content": {"type": "json_schema", "json_schema": SCHEMA},
            "end": "</f>",
        }
    ],
}
FORMAT = {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}]}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"guided_json": SCHEMA}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"guided_json": {"minimum": -(2**70)}}, GrammarKind.JSON_SCHEMA, {"minimum": -(2**70)}),
        ({"guided_json": json.dumps(SCHEMA)}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"guided_json_object": True}, GrammarKind.JSON_OBJECT, ""),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"guided_choice": ["yes", "no"]}, GrammarKind.CHOICE, ["yes", "no"]),
        ({"guided_grammar": 'root ::= "a"'}, GrammarKind.GRAMMAR, 'root ::= "a"'),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"structured_outputs": {"json": "{}", "regex": None}}, GrammarKind.JSON_SCHEMA, {}),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_OBJECT, ""),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
         GrammarKind.REGEX, "a"),
        ({"structured_outputs": {"choice": ["a"]}}, GrammarKind.CHOICE, ["a"]),
        ({"structured_outputs": {"grammar": "start: A"}}, GrammarKind.GRAMMAR, "start: A"),
        ({"structured_outputs": {"structural_tag": TAG}}, GrammarKind.STRUCTURAL_TAG, TAG_FORMAT),
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_OBJECT, ""),
        ({"response_format": {"type": "json_schema", "json_schema":
            {"name": "x", "strict": True, "schema": SCHEMA}}}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"response_format": {"type": "structural_tag", **TAG}}, GrammarKind.STRUCTURAL_TAG,
         TAG_FORMAT),
        ({"response_format": {"type": "structural_tag", "format": FORMAT}},
         GrammarKind.STRUCTURAL_TAG, FORMAT),
        ({"response_format": FORMAT}, GrammarKind.STRUCTURAL_TAG, FORMAT),
        ({"structured_outputs": {"structural_tag": json.dumps({"format": FORMAT})}},
         GrammarKind.STRUCTURAL_TAG, FORMAT),
        ({"response_format": {"type": "regex", "pattern": "a+"}}, GrammarKind.REGEX, "a+"),
        ({"response_format": {"type": "grammar", "grammar": "start: A"}},
         GrammarKind.GRAMMAR, "start: A"),
        ({"response_format": {"type": "const_string", "value": "hi"}},
         GrammarKind.CHOICE, ["hi"]),
        ({"guided_json_object": False, "guided_regex": "a"}, GrammarKind.REGEX, "a"),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, GrammarKind.REGEX, "a"),
        # llama.cpp's and SGLang's.
        ({"json_schema": SCHEMA}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"json_schema": json.dumps(SCHEMA)}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"grammar": 'root ::= "a"'}, GrammarKind.GRAMMAR, 'root ::= "a"'),
        ({"grammar": "", "regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"ebnf": 'root ::= "a"'}, GrammarKind.GRAMMAR, 'root ::= "a"'),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, GrammarKind.JSON_SCHEMA,
         SCHEMA),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, GrammarKind.JSON_SCHEMA,
         SCHEMA),
        ({"response_format": {"type": "json_object", "schema": None}}, GrammarKind.JSON_OBJECT, ""),
        # Two that say the same.
        ({"structured_outputs": {"grammar": "start: A"}, "guided_grammar": "start: A"},
         GrammarKind.GRAMMAR, "start: A"),
        ({"guided_json": json.dumps(SCHEMA), "json_schema": SCHEMA}, GrammarKind.JSON_SCHEMA,
         SCHEMA),
        ({"response_format": {"type": "json_object"}, "guided_json_object": True},
         GrammarKind.JSON_OBJECT, ""),
        # What is said of properties that objects do not declare.
        ({"response_format": {"type": "json_schema", "json_schema":
            {"strict": True, "schema": OPEN}}}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"response_format": {"type": "json_schema", "json_schema":
            {"strict": False, "schema": OPEN}}}, GrammarKind.JSON_SCHEMA, OPEN),
        ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": False}},
         GrammarKind.JSON_SCHEMA, OPEN),
        ({"structured_outputs": {"json": json.dumps(SCHEMA),
                                 "disable_additional_properties": False}},
         GrammarKind.JSON_SCHEMA, OPEN),
        ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
         GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"structured_outputs": {"json": PATTERNS, "disable_additional_properties": True}},
         GrammarKind.JSON_SCHEMA, {**PATTERNS, "additionalProperties": False}),
        ({"structured_outputs": {"regex": "a", "disable_additional_properties": True}},
         GrammarKind.REGEX, "a"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [V1, V3])
async def test_constraint(make_api, path, fields, kind, source):
    api = make_api("z")
    status, answer = await api.post(path, {**BODY, **fields, "prompt": ["a", "b"]})
    assert status == 200, answer
    [grammar] = api.backend.compiled
    assert grammar.kind is kind
    assert (grammar.source if isinstance(source, str) else json.loads(grammar.source)) == source
    assert any(grammar.param.startswith(name) for name in fields)
    assert [request.params.grammar for request in api.backend.submitted] == [grammar, grammar]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": None},
        {"guided_json_object": False},
        {"guided_json": None, "guided_choice": None},
        {"guided_decoding_backend": "outlines"},
        {"grammar": "", "json_schema": None, "regex": None, "ebnf": None},
    ],
)
async def test_no_constraint(make_api, fields):
    api = make_api("z")
    status, _ = await api.post(V1, {**BODY, **fields})
    assert status == 200
    assert api.backend.compiled == []
    assert api.backend.submitted[0].params.grammar is None


async def test_a_grammar_that_is_too_long_is_not_compiled(make_api):
    api = make_api(config=ApiConfig(max_grammar_length=10))
    status, answer = await api.post(V1, {**BODY, "guided_regex": "x" * 11})
    assert (status, answer["error"]["param"]) == (400, "guided_regex")
    assert api.backend.compiled == []


async def test_the_compilers_complaint_is_passed_on_at_a_reasonable_length(make_api):
    for reason in ("bad", "bad" * 1000):
        _, answer = await make_api().post(V1, {**BODY, "guided_regex": reason})
        message = answer["error"]["message"]
        assert message.startswith("guided_regex: bad regex: bad")
        assert len(message) < 400
