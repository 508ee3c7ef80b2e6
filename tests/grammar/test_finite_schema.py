"""Tests of `fastovms/grammar/finite_schema.py`."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fastovms.errors import InvalidField
from fastovms.grammar.finite_schema import without_endless_parts
from fastovms.grammar.json_schema import usable_rules, usable_schema
from fastovms.grammar_tree import Json
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

# Invalid numbers in schemas, named by their keywords.


MOST = 2**53 - 1


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"const": -(2**63)}, f"numbers of const must be from -{MOST} to {MOST}, not -9223"),
        ({"enum": [1, -9.223372036854775808e18]}, "numbers of enum"),
        ({"type": "integer", "minimum": 10**18}, "minimum must be less than 10{18}, not 10{18}"),
        ({"type": "integer", "exclusiveMinimum": 1e300}, "exclusiveMinimum must be less than"),
        ({"type": "number", "maximum": -(2**63)}, "maximum must be more than -10{18}, not -9223"),
        ({"type": "number", "maximum": math.inf}, "maximum must be a finite number, not inf"),
        ({"type": "number", "minimum": 5e-324}, "minimum must be 0 or at least 1e-50 away"),
        ({"multipleOf": 0}, "multipleOf must be a finite number greater than 0, not 0"),
        ({"multipleOf": math.nan}, "multipleOf must be"),
        ({"multipleOf": 5e-324}, "multipleOf must be at least 1e-10, not 5e-324"),
        ({"minimum": 10**4000}, "numbers must have at most 1000 digits, not 4001"),
        ({"type": ["null", -9]}, r"type must be a string or a list of strings, not \[.null., -9\]"),
        ({"type": {}}, "type must be a string or a list of strings, not {}"),
        ({"minLength": 1e300}, r"minLength must be a whole number from 0 to \d+, not 1e\+300"),
        ({"minItems": -1}, "minItems must be a whole number from 0 to 4294967295, not -1"),
        ({"minProperties": math.inf}, "minProperties must be a whole number .*, not inf"),
    ],
)  # fmt: skip
def test_malformed_keyword_is_refused(schema: object, fault: str) -> None:
    source = json.dumps({"type": "object", "properties": {"a": schema}})
    with pytest.raises(ValueError, match=fault):
        usable_schema(source)
    with pytest.raises(ValueError, match=fault):
        usable_rules(f'start: "x" %json {source}')


@pytest.mark.parametrize(
    "schema",
    [
        {"const": MOST},
        {"enum": [-MOST, 0.1, True, None, "1e400"]},
        {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
        {"type": "number", "minimum": -1e-9, "exclusiveMaximum": 1e-9, "multipleOf": 0.01},
        {"minLength": 0, "maxLength": 2**32 - 1, "minItems": "5"},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"minimum": {"type": "string"}, "const": {"type": "null"}},
        },
    ],
)
def test_schema_without_need_of_changes_is_unchanged(schema: object) -> None:
    assert json.loads(usable_schema(json.dumps(schema))) == schema


def test_counts_that_are_integers_are_written_as_such() -> None:
    source = json.dumps({"type": "array", "minItems": 2.0, "items": {"maxLength": 3.0}})
    usable = usable_schema(source)
    assert usable == json.dumps({"type": "array", "minItems": 2, "items": {"maxLength": 3}})


def test_number_with_more_digits_than_python_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1000 digits, not 5000"):
        usable_schema(f'{{"minimum": -{"9" * 5000}}}')


def test_bound_beyond_what_expressions_can_write_is_moved() -> None:
    bounds = {"minimum": -(2**63), "exclusiveMaximum": 1e300, "maximum": 10**400}
    source = json.dumps({"type": "integer", **bounds})
    assert json.loads(usable_schema(source)) == {
        "type": "integer",
        "minimum": -(10**18),
        "exclusiveMaximum": 10**18,
        "maximum": 10**18,
    }


# Schemas with endless references to themselves.


Schema = dict[str, Any]
ROOT: Schema = {"$ref": "#"}


def an_object(properties: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


ENDLESS: dict[str, Schema] = {
    "reference": ROOT,
    "own property": an_object({"a": {"$ref": "#/properties/a"}}),
    "root": an_object({"a": ROOT}),
    "two": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": an_object({"b": {"$ref": "#/$defs/b"}}),
            "b": an_object({"x": {}, "a": {"$ref": "#/$defs/a"}}),
        },
    },
    "items": {"type": "array", "items": ROOT, "minItems": 1},
    "prefixItems": {"type": "array", "prefixItems": [{}, ROOT], "minItems": 2},
    "older items": {"type": "array", "items": [{}, ROOT], "minItems": 2},
    "allOf": {"allOf": [{"type": "object"}, {"required": ["a"], "properties": {"a": ROOT}}]},
    "anyOf": {"anyOf": [an_object({"a": ROOT}), {"type": "array", "items": ROOT, "minItems": 1}]},
    "oneOf": {"oneOf": [an_object({"a": ROOT})]},
    "beside anyOf": {
        "type": "object", "properties": {"a": ROOT}, "anyOf": [{"required": ["a"]}],
    },
    "type beside": {"type": "object", "anyOf": [{"type": "null"}, an_object({"a": ROOT})]},
    "additionalProperties": {
        "type": "object", "required": ["a"], "additionalProperties": ROOT,
    },
    "through what is no keyword": {"$ref": "#/x/y", "x": {"y": an_object({"a": ROOT})}},
    "written otherwise": {
        "$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": an_object({"a": ROOT})},
    },
    "least number": {"type": "object", "additionalProperties": ROOT, "minProperties": 1},
    "pattern of all names": {
        "type": "object", "patternProperties": {"^.*$": ROOT}, "minProperties": 1,
    },
    "pattern of what is required": {
        "type": "object", "patternProperties": {"^a": ROOT}, "required": ["ab"],
    },
}  # fmt: skip

FINITE: dict[str, Schema] = {
    "optional": {"type": "object", "properties": {"a": ROOT}},
    "items": {"type": "array", "items": ROOT},
    "maybe": {"anyOf": [{"type": "null"}, an_object({"a": ROOT})]},
    "type": an_object({"a": ROOT}) | {"type": ["object", "null"]},
    "enough": {"type": "array", "prefixItems": [{}, ROOT], "minItems": 1},
    "least number of the named": {
        "type": "object",
        "properties": {"a": {}},
        "additionalProperties": ROOT,
        "minProperties": 1,
    },
    "least number by pattern": {
        "type": "object",
        "patternProperties": {"^a": {}, "^b": ROOT},
        "additionalProperties": False,
        "minProperties": 9,
    },
    "values": {"enum": [1, None, {}], "properties": {"a": ROOT}, "required": ["a"]},
    "pattern": {"type": "object", "patternProperties": {"^b": ROOT}, "required": ["a"]},
    "elsewhere": {"$ref": "https://example.com/a"},
    "missing": {"$ref": "#/$defs/nowhere"},
    "malformed": {"properties": 5, "required": [5], "allOf": 5, "anyOf": {}, "type": 5, "items": 5},
}


@pytest.mark.parametrize("schema", ENDLESS.values(), ids=ENDLESS)
def test_schema_that_only_endless_values_satisfy_is_refused(schema: Schema) -> None:
    assert without_endless_parts(schema) is False
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    with pytest.raises(InvalidField, match="nothing satisfies it"):
        vocabulary().matcher(grammar)
    rules = f"start: %json {json.dumps(schema)}"
    for grammar in (
        Grammar(GrammarKind.CALLS, "", tree=Json(json.dumps(schema))),
        Grammar(GrammarKind.GRAMMAR, rules),
    ):
        with pytest.raises(InvalidField, match="nothing satisfies a schema in it"):
            vocabulary().matcher(grammar)


@pytest.mark.parametrize("schema", FINITE.values(), ids=FINITE)
def test_schema_without_endless_parts_is_unchanged(schema: Schema) -> None:
    assert without_endless_parts(schema) is schema


def test_only_the_endless_part_is_cut() -> None:
    endless = an_object({"a": {"$ref": "#/$defs/e"}})
    schema = {
        "$defs": {"e": endless},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/e"}, "b": {"type": "null"}},
        "additionalProperties": False,
    }
    wanted = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    assert vocabulary().accepts(wanted, '{"b":null}')
    assert vocabulary().accepts(wanted, "{}")
    assert vocabulary().accepts(wanted, '{"a') is False


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": an_object({f"p{i}": {"$ref": "#/$defs/a"} for i in range(3000)})}},
        {"anyOf": [{"type": "null"}, *(an_object({f"p{i}": ROOT}) for i in range(2000))]},
        {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}},
    ],
)
def test_large_schema_is_searched_once(schema: Schema) -> None:
    without_endless_parts(schema)


@pytest.mark.slow
def test_schema_with_too_many_references_is_refused() -> None:
    parts = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(2000)}
    with pytest.raises(ValueError, match="too many references between its parts"):
        without_endless_parts({"$defs": parts})
