"""One schema of two that both hold."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.grammar.schemas.finite_schema import Schema
from fastovms.grammar.schemas.schema_merging import merged

INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def both(first: Any, second: Any) -> Any:
    return {"both": [first, second]}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, STRING, STRING),
        ({"title": "a"}, {"title": "b"}, {"title": "a"}),
        ({"type": ["integer", "null"]}, {"type": "number"}, {"type": "integer"}),
        ({"type": ["number", "null"]}, {"type": ["null", "integer"]},
         {"type": ["null", "integer"]}),
        (INTEGER, STRING, None),
        ({"minimum": 1, "maxLength": 5}, {"minimum": 3.5, "maxLength": 2},
         {"minimum": 3.5, "maxLength": 2}),
        ({"minimum": True}, {"minimum": 3}, {"minimum": True}),
        ({"enum": [1, "a", True]}, {"enum": ["a", True, 2]}, {"enum": ["a", True]}),
        ({"enum": [1, True]}, {"const": True}, {"enum": [True]}),
        ({"type": "string"}, {"const": "a"}, {"type": "string", "const": "a"}),
        ({"const": 1}, {"const": True}, None),
        ({"pattern": "a"}, {"pattern": "a"}, {"pattern": "a"}),
        ({"pattern": "a"}, {"pattern": "b", "format": "date"},
         {"pattern": "a", "format": "date", "allOf": [{"pattern": "b"}]}),
        ({"items": INTEGER}, {"items": STRING}, {"items": both(INTEGER, STRING)}),
        ({"items": INTEGER}, {"items": False}, {"items": INTEGER, "allOf": [{"items": False}]}),
        ({"required": ["a", "b"]}, {"required": ["b", "c"]}, {"required": ["a", "b", "c"]}),
        ({"properties": {"b": INTEGER, "a": {}}}, {"properties": {"c": STRING, "b": STRING}},
         {"properties": {"b": both(INTEGER, STRING), "a": {}, "c": STRING}}),
        ({"properties": {"a": INTEGER}, "additionalProperties": False},
         {"properties": {"a": True, "b": STRING}},
         {"properties": {"a": INTEGER, "b": False}, "additionalProperties": False}),
        ({"additionalProperties": INTEGER}, {"additionalProperties": STRING},
         {"additionalProperties": both(INTEGER, STRING)}),
        ({"patternProperties": {"a": INTEGER}}, {"required": ["a"]},
         {"patternProperties": {"a": INTEGER}, "required": ["a"]}),
        ({"patternProperties": {"a": INTEGER}}, {"properties": {"a": STRING}},
         {"patternProperties": {"a": INTEGER}, "allOf": [{"properties": {"a": STRING}}]}),
        ({"allOf": [STRING]}, {"allOf": [INTEGER]}, {"allOf": [STRING, INTEGER]}),
    ],
    ids=str,
)  # fmt: skip
def test_what_two_schemas_say(first: Schema, second: Schema, expected: Schema | None) -> None:
    assert merged(first, second, both) == expected
