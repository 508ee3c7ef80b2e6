"""Tests of `fastovms/grammar/json_schema.py`."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from fastovms.errors import InvalidField
from fastovms.grammar.finite_schema import Schema
from fastovms.grammar.json_schema import (
    closed_schema,
    open_schema,
    other_names,
    strict_schema,
    usable_rules,
    usable_schema,
)
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

# Expressions of all names except some.


@pytest.mark.parametrize(
    "names", [["a"], [""], ["name", "names", "na", "age"], ["a.b", "a-b", "[^]", "\\", "é", "a\n"]]
)
def test_other_names_match_all_but_the_names(names: list[str]) -> None:
    expression = re.compile(other_names(names).strip("^$"))
    others = [name[:-1] for name in names] + [f"{name}x" for name in names]
    others += [f"x{name}" for name in names] + [f"{name}\n" for name in names] + ["", "b", "\r\n"]
    for name in names:
        assert expression.fullmatch(name) is None
    for other in {*others} - {*names}:
        assert expression.fullmatch(other) is not None, other


# Objects that declare properties, and the schema of other properties.


INTEGER = {"type": "integer"}


def obj(names: str, required: str = "", **more: object) -> dict[str, Any]:
    """Returns an object schema that declares integers with names of one letter."""
    properties = dict.fromkeys(names, INTEGER)
    return {"type": "object", "properties": properties, "required": [*required], **more}


A, B, C = (obj(name, name) for name in "abc")
TREE = {
    "$defs": {"Node": {"properties": {"v": INTEGER, "next": {"$ref": "#/$defs/Node"}}}},
    "$ref": "#/$defs/Node",
}
LINKED = {
    "$defs": {
        "B": {
            "type": "object",
            "properties": {
                "a": INTEGER,
                "c": {"allOf": [{"$ref": "#/$defs/B"}, obj("y")]},
            },
        }
    },
    "$ref": "#/$defs/B",
}
BASE = {"$defs": {"Base": obj("i", "i")}}
REF = {"$ref": "#/$defs/Base"}


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        (
            obj("ab", "a"),
            ['{"a":1}', '{"a":1,"b":2}'],
            ['{"a":1,"c":2}', '{"a":1,"a":2}', '{"b":1,"a":2}', "{}"],
        ),
        ({"properties": {"a": INTEGER}}, ["{}", '{"a":1}'], ["1", "null", '{"b":1}']),
        ({"type": "object"}, ["{}", '{"a":{"b":[null]}}'], ["1"]),
        (
            {"type": ["object", "null"], "properties": {"a": INTEGER}},
            ["null", "{}"],
            ['{"b":1}'],
        ),
        (obj("a", "z"), ['{"z":null}', '{"a":1,"z":[]}'], ["{}", '{"z":1,"b":1}']),
        # Keywords for other properties keep their effect.
        (
            obj("a", additionalProperties=True),
            ['{"a":1,"b":"x"}'],
            ['{"a":1,"a":2}', '{"b":1,"a":2}', r'{"a":1,"\u0061":2}'],
        ),
        (
            obj("a", "z", additionalProperties=INTEGER),
            ['{"z":1}', '{"a":1,"z":2,"b":3}'],
            ['{"a":1}', '{"z":1,"a":2}', '{"z":"x"}', '{"z":1,"z":1}'],
        ),
        (
            obj("a", additionalProperties=INTEGER),
            ['{"b":1}'],
            ['{"b":"x"}', '{"a":1,"a":2}'],
        ),
        (obj("a", additionalProperties=False), ['{"a":1}'], ['{"b":1}']),
        (
            obj("a", patternProperties={"^x": INTEGER}),
            ['{"a":1,"x1":2,"b":"c"}'],
            ['{"xa":"b"}'],
        ),
        (obj("a", unevaluatedProperties=False), ['{"a":1}'], ['{"b":1}']),
        (obj("a", unevaluatedProperties=INTEGER), ['{"a":1,"b":2}'], ['{"b":"x"}']),
        # Nested ones.
        ({"type": "array", "items": A}, ['[{"a":1},{"a":2}]'], ['[{"a":1,"b":2}]']),
        (obj("", additionalProperties=A), ['{"x":{"a":1}}'], ['{"x":{"a":1,"b":1}}']),
        (
            {"type": "object", "patternProperties": {"^x": A}},
            ['{"x":{"a":1}}', '{"y":1}'],
            ['{"x":{"a":1,"b":1}}'],
        ),
        (TREE, ['{"v":1,"next":{"v":2}}'], ['{"v":1,"next":{"w":2}}']),
        (
            {"anyOf": [A, {"type": "null"}, {"type": "object"}]},
            ['{"a":1}', "null", '{"b":1}'],
            ["1"],
        ),
        ({"oneOf": [A, B]}, ['{"a":1}', '{"b":1}'], ['{"a":1,"b":1}']),
        # All together.
        ({"allOf": [A, B]}, ['{"a":1,"b":2}'], ['{"a":1}', '{"a":1,"b":2,"c":3}']),
        ({**A, "allOf": [B]}, ['{"a":1,"b":2}'], ['{"b":2,"a":1}', '{"a":1,"b":2,"c":3}']),
        ({"allOf": [B], **A}, ['{"b":2,"a":1}'], ['{"a":1,"b":2}']),
        (
            {"allOf": [A, {**B, "additionalProperties": INTEGER}]},
            ['{"a":1,"b":2,"c":3}'],
            ['{"a":1,"b":2,"c":"x"}'],
        ),
        (
            {"allOf": [obj("a", unevaluatedProperties=False), obj("b")]},
            ['{"a":1}', "{}"],
            ['{"b":1}'],
        ),
        (
            {"allOf": [obj("a", additionalProperties=False), obj("ab")]},
            ['{"a":1}'],
            ['{"a":1,"b":2}'],
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": ["number", "null"], "minimum": 1}}},
                    {"properties": {"a": {"type": ["null", "integer"], "minimum": 3}}},
                ]
            },
            ['{"a":3}', '{"a":null}', "{}"],
            ['{"a":2}', '{"a":3.5}'],
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "array", "items": {"minimum": 1}}}},
                    {"properties": {"a": {"items": INTEGER}}},
                ]
            },
            ['{"a":[1]}'],
            ['{"a":[0]}', '{"a":["x"]}'],
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"allOf": [{"minimum": 1}]}}},
                    {"properties": {"a": {"allOf": [INTEGER]}}},
                ]
            },
            ['{"a":1}'],
            ['{"a":0}', '{"a":"x"}'],
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"pattern": "^x"}}},
                    {"properties": {"a": {"type": "string", "pattern": "y$"}}},
                ]
            },
            ['{"a":"xy"}'],
            ['{"a":"x"}', '{"a":"y"}'],
        ),
        (
            {"allOf": [obj("a", patternProperties={"^x": INTEGER}), obj("b")]},
            ['{"a":1,"b":2,"x":3}'],
            ['{"a":1,"b":"x"}', '{"x":"y"}'],
        ),
        ({**BASE, "allOf": [REF, A]}, ['{"i":1,"a":2}'], ['{"i":1}', '{"i":1,"a":2,"b":3}']),
        (
            {**BASE, **REF, "properties": {"n": REF}},
            ['{"i":1,"n":{"i":2}}'],
            ['{"i":1,"n":{"i":2,"n":1}}', '{"i":1,"a":1}'],
        ),
        (
            {**BASE, **A, "anyOf": [REF, B]},
            ['{"a":1,"i":2}', '{"a":1,"b":2}'],
            ['{"a":1}', '{"a":1,"i":2,"b":3}'],
        ),
        (
            {**obj("ab"), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            ['{"a":1}', '{"b":1}', '{"a":1,"b":1}'],
            ["{}", '{"a":1,"c":1}'],
        ),
        (LINKED, ['{"a":1,"c":{"a":1,"c":{"y":3},"y":2}}'], ['{"y":1}', '{"c":{"z":1}}']),
        # An impossible property is omitted.
        (
            obj("", properties={"a": {"allOf": [A, {"type": "string"}]}, "b": INTEGER}),
            ['{"b":1}', "{}"],
            ['{"a":1}', '{"a":{"a":1}}'],
        ),
        # A reference to itself in its own place is ignored.
        (
            {
                "$defs": {
                    "X": {"anyOf": [{"$ref": "#/$defs/X"}, A], "description": "loop", **obj("b")}
                },
                "$ref": "#/$defs/X",
            },
            ['{"a":1}'],
            ['{"c":1}', "{}"],
        ),
        # References to any part.
        (
            {
                "components": {"schemas": {"a/b %": A}},
                "type": "array",
                "items": {"$ref": "#/components/schemas/a~1b%20%25"},
            },
            ['[{"a":1}]'],
            ['[{"b":1}]'],
        ),
        (
            {"$defs": {"X": {"$anchor": "x", **A}}, "items": {"$ref": "#x"}, "type": "array"},
            ['[{"a":1}]'],
            ['[{"a":1,"b":1}]'],
        ),
        (
            obj(
                "",
                properties={
                    "a": INTEGER,
                    "more": {"type": "array", "items": {"$ref": "#"}},
                },
            ),
            ['{"a":1,"more":[{"a":2}]}'],
            ['{"more":[{"b":1}]}'],
        ),
        (
            {"const": {"a": 1, "b": 2}, "properties": {"a": INTEGER}},
            ['{"a":1,"b":2}'],
            ['{"a":1}'],
        ),
    ],
    ids=str,
)
def test_schema_accepts_and_refuses_texts(
    schema: Schema, allowed: list[str], refused: list[str]
) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    for text in allowed:
        assert vocabulary().accepts(grammar, text) is True, text
    for text in refused:
        assert vocabulary().accepts(grammar, text) is not True, text


@pytest.mark.parametrize(
    ("change", "schema", "allowed", "refused"),
    [
        (strict_schema, obj("a", additionalProperties=True), ['{"a":1}'], ['{"a":1,"b":1}']),
        (strict_schema, obj("a", patternProperties={"x": True}), ['{"a":1}'], ['{"a":1,"x":1}']),
        (
            strict_schema,
            {"allOf": [obj("a", unevaluatedProperties=True), B]},
            ['{"b":1}'],
            ['{"b":1,"c":1}'],
        ),
        (
            strict_schema,
            {"type": "object", "additionalProperties": INTEGER},
            ['{"x":1}'],
            [],
        ),
        (open_schema, A, ['{"a":1,"b":[]}'], ['{"a":1,"a":2}', '{"b":1}']),
        (open_schema, {"items": A, "type": "array"}, ['[{"a":1,"b":[]}]'], []),
        (open_schema, obj("a", additionalProperties=False), ['{"a":1}'], ['{"b":1}']),
        (
            open_schema,
            obj("a", additionalProperties=INTEGER),
            ['{"b":1}'],
            ['{"b":[]}'],
        ),
    ],
)
def test_strict_and_open_schemas_close_and_open_objects(
    change: Any, schema: Schema, allowed: list[str], refused: list[str]
) -> None:
    test_schema_accepts_and_refuses_texts(change(schema), allowed, refused)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 5}, {"properties": {"a": 5}}, {"properties": {"a": A}, "required": 5},
        {"properties": {}, "required": [5]}, {"properties": {}, "anyOf": 5},
        {"properties": {}, "anyOf": [5]}, {"properties": {}, "allOf": [{"properties": 5}]},
        {"properties": {}, "allOf": [{"required": 5}], "required": ["a"]},
        {"properties": {}, "type": ["a", 5]}, {"properties": {}, "$ref": "http://elsewhere"},
        {"properties": {"a": {"$ref": "#/$defs/x"}}},
    ],
    ids=str,
)  # fmt: skip
def test_malformed_schema_is_refused(schema: Schema) -> None:
    with pytest.raises(InvalidField, match="cannot be used"):
        vocabulary().matcher(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))


def test_contradictory_schema_is_refused_as_unsatisfiable() -> None:
    for parts in ([A, {"type": "string"}], [{"enum": [1]}, {"const": 2}]):
        schema = {"properties": {}, "allOf": parts}
        with pytest.raises(InvalidField, match="Unsatisfiable schema"):
            vocabulary().matcher(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))


def test_alternatives_within_alternatives_have_a_limit() -> None:
    ten = {"anyOf": [obj(name) for name in "abcdefghij"]}
    assert isinstance(closed_schema({"allOf": [ten, ten]}), dict)
    with pytest.raises(ValueError, match="more than 2000 subschemas"):
        closed_schema({"allOf": [ten] * 4})


def test_too_deeply_nested_schema_is_refused() -> None:
    schema: dict[str, Any] = A
    for _ in range(400):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(ValueError, match="nested too deeply"):
        usable_schema(json.dumps(schema))


# The schema that llguidance gets.


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "format": "password"}, {"type": "string"}),
        (
            {
                "type": "object",
                "properties": {"format": {"format": "path"}, "b": {"format": "date"}},
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"format": {}, "b": {"format": "date"}},
                "additionalProperties": False,
            },
        ),
        (
            {"anyOf": [{"format": "int32"}, {"$ref": "#/anyOf/1"}]},
            {"anyOf": [{}, False]},
        ),
    ],
)
def test_unsupported_keywords_are_left_out(schema: object, expected: object) -> None:
    source = json.dumps(schema)
    assert json.loads(usable_schema(source)) == expected
    assert usable_rules(f'start: "a" %json {source} "b"') == (
        f'start: "a" %json {json.dumps(expected)} "b"'
    )


@pytest.mark.parametrize(
    "source",
    ['{"type":  "string"}', '{"format":  "email"}', '{"const":  {"format": "x"}}', '{"$ref":  5}'],
)
def test_schema_without_replaced_keywords_is_unchanged(source: str) -> None:
    assert usable_schema(source) == source


def test_schema_in_a_string_or_comment_of_rules_is_unchanged() -> None:
    endless = '%json {"$ref": "#"}'
    for lark in (f'start: "{endless[:6]}" // {endless}', f"start: /a/ # {endless}", "%json {"):
        assert usable_rules(lark) == lark


BOUNDS = [
    {"exclusiveMinimum": 0, "maximum": 0.75},
    {"exclusiveMinimum": 0.0, "exclusiveMaximum": 1e-5},
    {"minimum": -0.5, "exclusiveMaximum": 0},
    {"exclusiveMinimum": -0.5, "exclusiveMaximum": 0},
    {"exclusiveMinimum": 1, "exclusiveMaximum": 1.5},
    {"minimum": -1.5, "exclusiveMaximum": -1},
    {"exclusiveMinimum": 10**6, "maximum": 10**6 + 0.25},
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_exclusive_bound_is_not_reached(bounds: dict[str, float]) -> None:
    schema = {"type": "array", "items": {"type": "number", **bounds}, "minItems": 8}
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    low = bounds.get("exclusiveMinimum", -math.inf)
    high = bounds.get("exclusiveMaximum", math.inf)
    for seed in range(5):
        numbers = json.loads(vocabulary().walk(grammar, ["]"], seed, num_tokens=5))
        assert all(low < number < high for number in numbers), numbers


@pytest.mark.parametrize(
    "bounds",
    [
        {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"exclusiveMinimum": 0.25, "maximum": 0.5},
        {"exclusiveMinimum": 0},
        {"exclusiveMinimum": "0", "maximum": 0.5},
        {"exclusiveMinimum": 0, "maximum": 10**18},
        {"minimum": 0, "maximum": 0.5},
    ],
    ids=str,
)
def test_other_bounds_stay_as_they_are(bounds: dict[str, object]) -> None:
    source = json.dumps({"type": "number", **bounds})
    assert usable_schema(source) == source


def test_references_that_lead_to_one_another_too_often() -> None:
    def chain(length: int) -> str:
        parts: dict[str, object] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
        return json.dumps({"$ref": "#/$defs/d0", "$defs": {**parts, f"d{length}": {}}})

    assert usable_schema(chain(45)) == chain(45)
    with pytest.raises(ValueError, match="is longer than 50"):
        usable_schema(chain(55))
