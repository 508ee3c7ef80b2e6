"""What of a schema llguidance gets."""

from __future__ import annotations

import json

import pytest

from fastovms.engine.json_schema import usable_rules, usable_schema
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "format": "password"}, {"type": "string"}),
        (
            {"properties": {"format": {"format": "path"}, "b": {"format": "date"}}},
            {"properties": {"format": {}, "b": {"format": "date"}}},
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
