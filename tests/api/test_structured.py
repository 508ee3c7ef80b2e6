"""Tests of `fastovms/api/structured.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastovms.api import constraint, structured
from fastovms.api.structured import tag_format
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

# Structural tags as clients send them, in both forms.


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STRUCTURE = {"begin": "<f>", "schema": SCHEMA, "end": "</f>"}
OLDER = {"structures": [STRUCTURE], "triggers": ["<f"]}
SEQUENCE = {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}]}


@pytest.mark.parametrize("given", [{"format": SEQUENCE}, json.dumps({"format": SEQUENCE})])
def test_structural_tag_is_returned_unchanged(given):
    assert tag_format(given, "tag") == SEQUENCE
    assert tag_format({"format": {"type": 5}}, "tag") == {"type": 5}  # its renderers check it


@pytest.mark.parametrize("given", [OLDER, json.dumps(OLDER)])
def test_the_older_form_becomes_a_format(given):
    wanted = Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(tag_format(given, "tag")))
    accepts = vocabulary().accepts
    assert accepts(wanted, 'a<f>{"n":1}</f>b')
    assert not accepts(wanted, "a<f>[]</f>")


DEEP = '{"format":' + "[" * 10_000
BAD: list[tuple[Any, str, str]] = [
    (5, "", "tag must be an object or its JSON text, not 5"),
    ("[]", "", "tag must be an object or its JSON text, not []"),
    ("{", "", "tag is not valid JSON: Expecting"),
    (DEEP, "", "tag is not valid JSON: maximum recursion"),
    ({"format": 5}, ".format", "tag.format must be an object, not 5"),
    ({}, ".structures", "tag.structures must be a list where there is no tag.format, not null"),
    ({**OLDER, "structures": 5}, ".structures", "tag.structures must be a list where"),
    ({**OLDER, "triggers": 5}, ".triggers", "tag.triggers must be a list where"),
    ({**OLDER, "structures": [5]}, ".structures[0]", "tag.structures[0] must be an object, not 5"),
    (
        {**OLDER, "structures": [STRUCTURE, {**STRUCTURE, "begin": None}]},
        ".structures[1].begin",
        "tag.structures[1].begin must be a string, not null",
    ),
    (
        {**OLDER, "structures": [{"begin": ""}]},
        ".structures[0].end",
        "tag.structures[0].end must be a string, not null",
    ),
]


@pytest.mark.parametrize(("given", "place", "message"), BAD)
def test_malformed_structural_tag_is_named(given, place, message):
    with pytest.raises(InvalidField) as error:
        tag_format(given, "tag")
    assert error.value.param == f"tag{place}"
    assert error.value.message.startswith(message)


def test_a_structure_without_a_schema_is_refused_by_the_grammar():
    found = tag_format({**OLDER, "structures": [{"begin": "<f>", "end": "</f>"}]}, "tag")
    with pytest.raises(InvalidField, match="json_schema must be an object or true or false"):
        vocabulary().matcher(Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(found)))


# The forms of a constraint on the text, and what the backend gets for each.


V1 = "/v1/completions"
V3 = "/v3/completions"
BODY = {"model": "fake", "prompt": "ab"}
STRUCTURED_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OPEN = {**STRUCTURED_SCHEMA, "additionalProperties": True}
PATTERNS = {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}
TAG = {
    "structures": [{"begin": "<f>", "schema": STRUCTURED_SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}
TAG_FORMAT = {
    "type": "triggered_tags",
    "triggers": ["<f"],
    "tags": [
        {
            "begin": "<f>",
            "content": {"type": "json_schema", "json_schema": STRUCTURED_SCHEMA},
            "end": "</f>",
        }
    ],
}
FORMAT = {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}]}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"guided_json": STRUCTURED_SCHEMA}, GrammarKind.JSON_SCHEMA, STRUCTURED_SCHEMA),
        ({"guided_json": {"minimum": -(2**70)}}, GrammarKind.JSON_SCHEMA, {"minimum": -(2**70)}),
        (
            {"guided_json": json.dumps(STRUCTURED_SCHEMA)},
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        ({"guided_json_object": True}, GrammarKind.JSON_OBJECT, ""),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"guided_choice": ["yes", "no"]}, GrammarKind.CHOICE, ["yes", "no"]),
        ({"guided_grammar": 'root ::= "a"'}, GrammarKind.GRAMMAR, 'root ::= "a"'),
        (
            {"structured_outputs": {"json": STRUCTURED_SCHEMA}},
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        ({"structured_outputs": {"json": "{}", "regex": None}}, GrammarKind.JSON_SCHEMA, {}),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_OBJECT, ""),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            GrammarKind.REGEX,
            "a",
        ),
        ({"structured_outputs": {"choice": ["a"]}}, GrammarKind.CHOICE, ["a"]),
        ({"structured_outputs": {"grammar": "start: A"}}, GrammarKind.GRAMMAR, "start: A"),
        ({"structured_outputs": {"structural_tag": TAG}}, GrammarKind.STRUCTURAL_TAG, TAG_FORMAT),
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_OBJECT, ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": STRUCTURED_SCHEMA},
                }
            },
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        (
            {"response_format": {"type": "structural_tag", **TAG}},
            GrammarKind.STRUCTURAL_TAG,
            TAG_FORMAT,
        ),
        (
            {"response_format": {"type": "structural_tag", "format": FORMAT}},
            GrammarKind.STRUCTURAL_TAG,
            FORMAT,
        ),
        ({"response_format": FORMAT}, GrammarKind.STRUCTURAL_TAG, FORMAT),
        (
            {"structured_outputs": {"structural_tag": json.dumps({"format": FORMAT})}},
            GrammarKind.STRUCTURAL_TAG,
            FORMAT,
        ),
        ({"response_format": {"type": "regex", "pattern": "a+"}}, GrammarKind.REGEX, "a+"),
        (
            {"response_format": {"type": "grammar", "grammar": "start: A"}},
            GrammarKind.GRAMMAR,
            "start: A",
        ),
        ({"response_format": {"type": "const_string", "value": "hi"}}, GrammarKind.CHOICE, ["hi"]),
        ({"guided_json_object": False, "guided_regex": "a"}, GrammarKind.REGEX, "a"),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, GrammarKind.REGEX, "a"),
        # llama.cpp's and SGLang's.
        ({"json_schema": STRUCTURED_SCHEMA}, GrammarKind.JSON_SCHEMA, STRUCTURED_SCHEMA),
        (
            {"json_schema": json.dumps(STRUCTURED_SCHEMA)},
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        ({"grammar": 'root ::= "a"'}, GrammarKind.GRAMMAR, 'root ::= "a"'),
        ({"grammar": "", "regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"ebnf": 'root ::= "a"'}, GrammarKind.GRAMMAR, 'root ::= "a"'),
        (
            {"response_format": {"type": "json_object", "schema": STRUCTURED_SCHEMA}},
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        (
            {"response_format": {"type": "json_schema", "schema": STRUCTURED_SCHEMA}},
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        ({"response_format": {"type": "json_object", "schema": None}}, GrammarKind.JSON_OBJECT, ""),
        # Two that say the same.
        (
            {"structured_outputs": {"grammar": "start: A"}, "guided_grammar": "start: A"},
            GrammarKind.GRAMMAR,
            "start: A",
        ),
        (
            {"guided_json": json.dumps(STRUCTURED_SCHEMA), "json_schema": STRUCTURED_SCHEMA},
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        (
            {"response_format": {"type": "json_object"}, "guided_json_object": True},
            GrammarKind.JSON_OBJECT,
            "",
        ),
        # What is said of properties that objects do not declare.
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"strict": True, "schema": OPEN},
                }
            },
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"strict": False, "schema": OPEN},
                }
            },
            GrammarKind.JSON_SCHEMA,
            OPEN,
        ),
        (
            {
                "structured_outputs": {
                    "json": STRUCTURED_SCHEMA,
                    "disable_additional_properties": False,
                }
            },
            GrammarKind.JSON_SCHEMA,
            OPEN,
        ),
        (
            {
                "structured_outputs": {
                    "json": json.dumps(STRUCTURED_SCHEMA),
                    "disable_additional_properties": False,
                }
            },
            GrammarKind.JSON_SCHEMA,
            OPEN,
        ),
        (
            {
                "structured_outputs": {
                    "json": STRUCTURED_SCHEMA,
                    "disable_additional_properties": True,
                }
            },
            GrammarKind.JSON_SCHEMA,
            STRUCTURED_SCHEMA,
        ),
        (
            {"structured_outputs": {"json": PATTERNS, "disable_additional_properties": True}},
            GrammarKind.JSON_SCHEMA,
            {**PATTERNS, "additionalProperties": False},
        ),
        (
            {"structured_outputs": {"regex": "a", "disable_additional_properties": True}},
            GrammarKind.REGEX,
            "a",
        ),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
async def test_structured_output_fields_become_a_grammar(make_api, path, fields, kind, source):
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
async def test_fields_without_structure_compile_no_grammar(make_api, fields):
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


def test_every_field_that_constrains_an_answer_is_seen_before_its_reader_is_imported() -> None:
    fields = {*structured.FIELDS, "structured_outputs", "guided_whitespace_pattern"}
    assert fields == set(constraint._FIELDS)
    assert set(constraint.CONSTRAINTS) == set(structured._CONSTRAINTS)
