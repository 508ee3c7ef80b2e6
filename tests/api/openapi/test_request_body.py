"""What a dialect adds to the schema of a body."""

from __future__ import annotations

import jsonschema_rs
import pytest

from fastovms.api.openapi.request_body import body_schema
from fastovms.api.wire.dialect import OPENAI, OVMS

NULL = {"type": "null"}
COMPONENT = {
    "type": "object",
    "properties": {
        "model": {"anyOf": [{"type": "string"}, NULL], "default": None},
        "prompt": {"anyOf": [{"type": "string"}, {"type": "array"}, NULL], "default": None},
        "stream": {"anyOf": [{"type": "boolean"}, NULL]},
        "top_p": {"anyOf": [{"type": "number"}, NULL], "default": None},
        "top_k": {"anyOf": [{"type": "integer"}, NULL], "default": None},
        "min_p": {"anyOf": [{"type": "number"}, NULL], "default": None},
        "other": {},
    },
}


@pytest.mark.parametrize(
    ("dialect", "body", "is_valid"),
    [
        (OPENAI, {"prompt": "a"}, True),
        (OPENAI, {"prompt": "a", "model": None, "stream": None, "other": 5}, True),
        (OPENAI, {}, False),
        (OPENAI, {"prompt": None}, False),
        (OPENAI, {"prompt": "a", "top_k": -1}, True),
        (OPENAI, {"prompt": "a", "top_k": 0}, True),
        (OPENAI, {"prompt": "a", "top_k": -2}, False),
        (OPENAI, {"prompt": "a", "top_p": 0}, False),
        (OPENAI, {"prompt": "a", "top_p": 1}, True),
        (OPENAI, {"prompt": "a", "min_p": 1}, True),
        (OVMS, {"prompt": "a"}, False),
        (OVMS, {"prompt": "a", "model": None}, False),
        (OVMS, {"prompt": "a", "model": "m"}, True),
        (OVMS, {"prompt": ["a"], "model": "m"}, True),
        (OVMS, {"prompt": "a", "model": "m", "stream": None}, False),
        (OVMS, {"prompt": "a", "model": "m", "top_k": 0}, False),
        (OVMS, {"prompt": "a", "model": "m", "top_k": None}, True),
        (OVMS, {"prompt": "a", "model": "m", "min_p": 1}, False),
    ],
)
def test_what_a_body_may_be(dialect, body, is_valid):
    schema = body_schema(COMPONENT, ("prompt",), dialect)
    assert jsonschema_rs.is_valid(schema, body) is is_valid


@pytest.mark.parametrize(
    ("body", "is_valid"),
    [({"stream": True}, True), ({"stream": None}, True), ({}, False)],
)
def test_a_field_that_must_be_there_may_be_null_where_that_is_another_value(body, is_valid):
    schema = body_schema(COMPONENT, ("stream",), OPENAI)
    assert jsonschema_rs.is_valid(schema, body) is is_valid


def test_the_component_stays_as_it_is():
    before = repr(COMPONENT)
    body_schema(COMPONENT, ("prompt",), OVMS)
    assert repr(COMPONENT) == before
