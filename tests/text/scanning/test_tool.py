"""The arguments of functions, as grammars."""

from __future__ import annotations

import json

import pytest

from fastovms.text.scanning.tool import Tool


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        ({}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"type": ["object", "null"]}, {"type": "object"}),
    ],
)
def test_arguments_are_an_object(parameters: dict[str, object], schema: object) -> None:
    assert json.loads(Tool("f", parameters).arguments.schema) == schema
