"""Two schemas that hold at once, as one."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.grammar.schema_merging import merged

INTEGER, NUMBER = {"type": "integer"}, {"type": "number"}


def both(first: Any, second: Any) -> Any:
    return {"both": [first, second]}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"title": "a"}, {"title": "b", "type": "string"}, {"title": "a", "type": "string"}),
        ({"minimum": 1}, {"minimum": 3}, {"minimum": 3}),
        ({"maxLength": 1}, {"maxLength": 3}, {"maxLength": 1}),
        (INTEGER, NUMBER, INTEGER),
        (NUMBER, INTEGER, INTEGER),
        ({"type": ["string", "null"]}, {"type": ["null", "string", "array"]},
         {"type": ["string", "null"]}),
        ({"enum": [1, 2, 3]}, {"enum": [3, 1, 4]}, {"enum": [1, 3]}),
        ({"enum": [1, 2]}, {"const": 2}, {"enum": [2]}),
        ({}, {"const": 2}, {"const": 2}),
        ({"items": INTEGER}, {"items": NUMBER}, {"items": both(INTEGER, NUMBER)}),
        ({"pattern": "a"}, {"pattern": "b"}, {"pattern": "a", "allOf": [{"pattern": "b"}]}),
        ({"pattern": "a"}, {"pattern": "a"}, {"pattern": "a"}),
        ({"allOf": [1]}, {"allOf": [2]}, {"allOf": [1, 2]}),
        ({"required": ["a", "b"]}, {"required": ["b", "c"]}, {"required": ["a", "b", "c"]}),
        ({"properties": {"a": INTEGER}}, {"properties": {"a": NUMBER, "b": NUMBER}},
         {"properties": {"a": both(INTEGER, NUMBER), "b": NUMBER}}),
        ({"properties": {"a": INTEGER}}, {"additionalProperties": False},
         {"properties": {"a": False}, "additionalProperties": False}),
        # Which names fit a pattern is not known here.
        ({"patternProperties": {"a": INTEGER}}, {"properties": {"a": NUMBER}},
         {"patternProperties": {"a": INTEGER}, "allOf": [{"properties": {"a": NUMBER}}]}),
    ],
)  # fmt: skip
def test_what_both_say(first: dict[str, Any], second: dict[str, Any], expected: object) -> None:
    assert merged(first, second, both) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (INTEGER, {"type": "string"}),
        ({"enum": [1]}, {"enum": [2]}),
        ({"const": "a"}, {"const": "b"}),
    ],
)
def test_nothing_in_common(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert merged(first, second, both) is None
