"""Tests that the page of requests has the fields of the OpenAPI document and the page Fields."""

from __future__ import annotations

import re
from typing import Any

import pytest

from docs import generate
from docs.requests_page import SECTIONS, meanings, request_tables

FIELDS = """
## Things, field by field

| field | OpenAI | fastovms `/v1` |
|---|---|---|
| `a` | text | default b; cut. Takes `1` `2`, refuses `"c"` |
"""


def document(**properties: Any) -> dict[str, Any]:
    schema = {"properties": properties, "required": ["needed"]}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}}
    return {
        "paths": {"/v1/things": {"post": {"requestBody": body}, "get": {}}},
        "components": {"schemas": {"Body": schema}},
    }


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 4}, "integer from 1 to 4"),
        ({"type": "number", "exclusiveMinimum": 0.5}, "number above 0.5"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"type": ["array", "null"], "items": {"type": "string"}}, "list of string"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, 'list of `"a"` `"b"`'),
        ({"$ref": "#/components/schemas/Other"}, "Other"),
        ({"const": True}, "`true`"),
        ({}, "any"),
    ],
)
def test_types_are_written_in_words(schema: dict[str, Any], words: str):
    [(title, [row])] = request_tables(document(field=schema), "")
    assert title == "POST /v1/things"
    assert row == ("`field`", words, "")


def test_meanings_come_from_the_schema_before_the_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SECTIONS, "/v1/things", ("Things",))  # type: ignore[call-overload]
    described = {"type": "string", "description": "A text.", "default": "x"}
    [(_, rows)] = request_tables(document(a={}, needed=described, other=described), FIELDS)
    assert [row[2] for row in rows] == [
        "Default b; cut.", "A text. Required.", 'A text. Default: `"x"`.',
    ]  # fmt: skip


def test_the_sections_are_on_the_page():
    found = meanings(generate.fields_page())
    assert {title for titles in SECTIONS.values() for title in titles} <= found.keys()
    paths = set(re.findall(r"^## POST (\S+)$", generate.requests_page(), re.MULTILINE))
    assert set(SECTIONS) <= paths
