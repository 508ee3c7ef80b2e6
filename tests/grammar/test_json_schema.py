"""What of a schema llguidance gets."""

from __future__ import annotations

import json
import math

import pytest

from fastovms.grammar.json_schema import usable_rules, usable_schema
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary


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
def test_what_is_left_out(schema: object, expected: object) -> None:
    source = json.dumps(schema)
    assert json.loads(usable_schema(source)) == expected
    assert usable_rules(f'start: "a" %json {source} "b"') == (
        f'start: "a" %json {json.dumps(expected)} "b"'
    )


@pytest.mark.parametrize(
    "source",
    ['{"type":  "string"}', '{"format":  "email"}', '{"const":  {"format": "x"}}', '{"$ref":  5}'],
)
def test_what_needs_nothing_is_the_same_text(source: str) -> None:
    assert usable_schema(source) == source


def test_what_only_looks_like_a_schema_in_rules() -> None:
    endless = '%json {"$ref": "#"}'
    for lark in (f'start: "{endless[:6]}" // {endless}', f"start: /a/ # {endless}", "%json {"):
        assert usable_rules(lark) == lark


def test_a_format_that_nobody_knows_asks_nothing() -> None:
    schema = json.dumps({"type": "string", "format": "file-path"})
    assert vocabulary().accepts(Grammar(GrammarKind.JSON_SCHEMA, schema), '"a/b"')


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
def test_an_exclusive_bound_is_not_reached(bounds: dict[str, float]) -> None:
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
    with pytest.raises(ValueError, match="over more than 50 others"):
        usable_schema(chain(55))
