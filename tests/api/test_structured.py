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
from tests.api.completion_requests import BODY, V1, V3
from tests.vocabularies import vocabulary

# Structural tags of clients in both formats.


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STRUCTURE = {"begin": "<f>", "schema": SCHEMA, "end": "</f>"}
OLDER = {"structures": [STRUCTURE], "triggers": ["<f"]}
SEQUENCE = {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}]}


@pytest.mark.parametrize("given", [{"format": SEQUENCE}, json.dumps({"format": SEQUENCE})])
def test_structural_tag_is_returned_unchanged(given):
    assert tag_format(given, "tag") == SEQUENCE
    assert tag_format({"format": {"type": 5}}, "tag") == {"type": 5}  # its renderers check it


@pytest.mark.parametrize("given", [OLDER, json.dumps(OLDER)])
def test_older_structural_tag_becomes_a_format(given):
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


# The formats of a constraint on the text, and the backend's grammar for each.


OPEN = {**SCHEMA, "additionalProperties": True}
PATTERNS = {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}
CONTENT = {"type": "json_schema", "json_schema": SCHEMA}
TAGS = [{"begin": "<f>", "content": CONTENT, "end": "</f>"}]
TAG_FORMAT = {"type": "triggered_tags", "triggers": ["<f"], "tags": TAGS}
TEXT = json.dumps(SCHEMA)
OF_JSON, OF_OBJECT, OF_TAG, OF_REGEX, OF_CHOICE, OF_GRAMMAR = (
    getattr(GrammarKind, kind)
    for kind in ("JSON_SCHEMA", "JSON_OBJECT", "STRUCTURAL_TAG", "REGEX", "CHOICE", "GRAMMAR")
)


def form(kind: str, **members: Any) -> dict[str, Any]:
    return {"response_format": {"type": kind, **members}}


def json_form(**members: Any) -> dict[str, Any]:
    return form("json_schema", json_schema=members)


def outputs(*, more: bool | None = None, **members: Any) -> dict[str, Any]:
    """`more`: whether objects may have properties that their schema does not declare."""
    members |= {} if more is None else {"disable_additional_properties": not more}
    return {"structured_outputs": members}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"guided_json": SCHEMA}, OF_JSON, SCHEMA),
        ({"guided_json": {"minimum": -(2**70)}}, OF_JSON, {"minimum": -(2**70)}),
        ({"guided_json": TEXT}, OF_JSON, SCHEMA),
        ({"guided_json_object": True}, OF_OBJECT, ""),
        ({"guided_regex": "a+"}, OF_REGEX, "a+"),
        ({"guided_choice": ["yes", "no"]}, OF_CHOICE, ["yes", "no"]),
        ({"guided_grammar": 'root ::= "a"'}, OF_GRAMMAR, 'root ::= "a"'),
        (outputs(json=SCHEMA), OF_JSON, SCHEMA),
        (outputs(json="{}", regex=None), OF_JSON, {}),
        (outputs(json_object=True), OF_OBJECT, ""),
        (outputs(regex="a", disable_any_whitespace=True), OF_REGEX, "a"),
        (outputs(choice=["a"]), OF_CHOICE, ["a"]),
        (outputs(grammar="start: A"), OF_GRAMMAR, "start: A"),
        (outputs(structural_tag=OLDER), OF_TAG, TAG_FORMAT),
        (outputs(structural_tag=json.dumps({"format": SEQUENCE})), OF_TAG, SEQUENCE),
        (form("json_object"), OF_OBJECT, ""),
        (json_form(name="x", strict=True, schema=SCHEMA), OF_JSON, SCHEMA),
        (form("structural_tag", **OLDER), OF_TAG, TAG_FORMAT),
        (form("structural_tag", format=SEQUENCE), OF_TAG, SEQUENCE),
        ({"response_format": SEQUENCE}, OF_TAG, SEQUENCE),
        (form("regex", pattern="a+"), OF_REGEX, "a+"),
        (form("grammar", grammar="start: A"), OF_GRAMMAR, "start: A"),
        (form("const_string", value="hi"), OF_CHOICE, ["hi"]),
        ({"guided_json_object": False, "guided_regex": "a"}, OF_REGEX, "a"),
        ({**form("text"), "guided_regex": "a"}, OF_REGEX, "a"),
        # llama.cpp's and SGLang's.
        ({"json_schema": SCHEMA}, OF_JSON, SCHEMA),
        ({"json_schema": TEXT}, OF_JSON, SCHEMA),
        ({"grammar": 'root ::= "a"'}, OF_GRAMMAR, 'root ::= "a"'),
        ({"grammar": "", "regex": "a+"}, OF_REGEX, "a+"),
        ({"ebnf": 'root ::= "a"'}, OF_GRAMMAR, 'root ::= "a"'),
        (form("json_object", schema=SCHEMA), OF_JSON, SCHEMA),
        (form("json_schema", schema=SCHEMA), OF_JSON, SCHEMA),
        (form("json_object", schema=None), OF_OBJECT, ""),
        # Two fields with the same meaning.
        ({**outputs(grammar="start: A"), "guided_grammar": "start: A"}, OF_GRAMMAR, "start: A"),
        ({"guided_json": TEXT, "json_schema": SCHEMA}, OF_JSON, SCHEMA),
        ({**form("json_object"), "guided_json_object": True}, OF_OBJECT, ""),
        # Properties that a schema does not declare.
        (json_form(strict=True, schema=OPEN), OF_JSON, SCHEMA),
        (json_form(strict=False, schema=OPEN), OF_JSON, OPEN),
        (outputs(json=SCHEMA, more=True), OF_JSON, OPEN),
        (outputs(json=TEXT, more=True), OF_JSON, OPEN),
        (outputs(json=SCHEMA, more=False), OF_JSON, SCHEMA),
        (outputs(json=PATTERNS, more=False), OF_JSON, {**PATTERNS, "additionalProperties": False}),
        (outputs(regex="a", more=False), OF_REGEX, "a"),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
async def test_structured_output_fields_become_a_grammar(make_api, path, fields, kind, source):
    api = make_api("z")
    await api.answer(path, {**BODY, **fields, "prompt": ["a", "b"]})
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
    await api.answer(V1, {**BODY, **fields})
    assert api.backend.compiled == []
    assert api.backend.submitted[0].params.grammar is None


async def test_long_grammar_is_refused_uncompiled(make_api):
    api = make_api(config=ApiConfig(max_grammar_length=10))
    assert await api.refused(V1, {**BODY, "guided_regex": "x" * 11}) == "guided_regex"
    assert api.backend.compiled == []


def test_every_field_that_constrains_an_answer_is_seen_before_its_reader_is_imported() -> None:
    fields = {*structured.FIELDS, "structured_outputs", "guided_whitespace_pattern"}
    assert fields == set(constraint._FIELDS)
    assert set(constraint.CONSTRAINTS) == set(structured._CONSTRAINTS)


async def test_reason_of_the_compiler_is_returned_in_part(make_api):
    for reason in ("bad", "bad" * 1000):
        _, answer = await make_api().post(V1, {**BODY, "guided_regex": reason})
        message = answer["error"]["message"]
        assert message.startswith("guided_regex: bad regex: bad")
        assert len(message) < 400


def test_structure_without_a_schema_is_refused_by_the_grammar():
    found = tag_format({**OLDER, "structures": [{"begin": "<f>", "end": "</f>"}]}, "tag")
    with pytest.raises(InvalidField, match="json_schema must be an object or true or false"):
        vocabulary().matcher(Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(found)))
