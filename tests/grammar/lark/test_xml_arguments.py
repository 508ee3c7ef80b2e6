"""Arguments as elements, tried on a vocabulary."""

from __future__ import annotations

import json

import pytest

from fastovms.grammar.lark.lark_writer import LarkPart, LarkWriter
from fastovms.grammar.lark.xml_arguments import xml_arguments
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary


def json_value(schema: object) -> LarkPart:
    return LarkPart(f"%json {json.dumps(schema)}", False)


def grammar(schema: dict[str, object]) -> Grammar:
    rules = LarkWriter({})
    return Grammar(GrammarKind.GRAMMAR, rules.source(rules.join(
        xml_arguments(rules, schema, json_value)
    )))  # fmt: skip


SCHEMA: dict[str, object] = {
    "properties": {
        "text": {"type": "string"},
        "number": {"$ref": "#/$defs/Number"},
        "unit": {"type": "string", "enum": ["C", "F", 5]},
    },
    "required": ["number"],
    "$defs": {"Number": {"type": "integer"}},
}
NUMBER = "<parameter=number>1</parameter>"


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        (NUMBER, True),
        (f"\n<parameter=text>a\n<b></parameter>\n{NUMBER}\n", True),
        (f"{NUMBER}<parameter=unit>C</parameter>", True),
        ("", None),
        ("<parameter=number>x", False),
        (f"{NUMBER}<parameter=unit>K", False),
        (f"{NUMBER}<parameter=unit>5", False),
        (f"{NUMBER}<parameter=text>", False),
        ("<parameter=other>", False),
    ],
)
def test_one_element_for_each_property_in_their_order(text: str, is_accepted: bool | None) -> None:
    assert vocabulary().accepts(grammar(SCHEMA), text) is is_accepted


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"anyOf": []}, "has 'anyOf', which cannot be kept to in elements"),
        ({"type": "string"}, "must be of an object"),
        ({"properties": []}, "must have properties as an object and required as a list"),
        ({"required": ["a"]}, "requires 'a', which is none of its properties"),
        ({"properties": {"a": 5}}, "must have schemas as properties"),
        ({"properties": {"a": {"type": "string", "enum": [1]}}}, "must have a string to choose"),
        ({"properties": {"a": {"type": "string", "minLength": 1}}}, "cannot have 'minLength' of"),
    ],
)
def test_what_is_refused(schema: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grammar(schema)
