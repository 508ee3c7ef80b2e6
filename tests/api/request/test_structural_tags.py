"""Structural tags as clients send them, in both forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastovms.api.request.structural_tags import tag_format
from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STRUCTURE = {"begin": "<f>", "schema": SCHEMA, "end": "</f>"}
OLDER = {"structures": [STRUCTURE], "triggers": ["<f"]}
SEQUENCE = {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}]}


@pytest.mark.parametrize("given", [{"format": SEQUENCE}, json.dumps({"format": SEQUENCE})])
def test_a_format_is_told_as_it_is(given):
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
    ("{", "", "tag is no JSON that can be read: Expecting"),
    (DEEP, "", "tag is no JSON that can be read: maximum recursion"),
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
def test_what_is_malformed_is_named(given, place, message):
    with pytest.raises(InvalidField) as error:
        tag_format(given, "tag")
    assert error.value.param == f"tag{place}"
    assert error.value.message.startswith(message)


def test_a_structure_without_a_schema_is_refused_by_the_grammar():
    found = tag_format({**OLDER, "structures": [{"begin": "<f>", "end": "</f>"}]}, "tag")
    with pytest.raises(InvalidField, match="json_schema must be an object or true or false"):
        vocabulary().matcher(Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(found)))
