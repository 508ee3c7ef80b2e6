from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from fastovms.api.wire.bodies.body import decode, show
from fastovms.errors import InvalidField, MalformedBody, RequestError


class Inner(msgspec.Struct):
    flag: bool = False


class Schema(msgspec.Struct):
    number: float | None = None
    inner: Inner | None = None
    items: list[str | int] | None = None
    table: dict[str, float] | None = None
    kind: Literal["a", "b"] | None = None
    free: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"number": "x"}', "number", 'number must be a number, not "x"'),
        (b'{"number": true}', "number", "number must be a number, not true"),
        (b'{"inner": {"flag": 1}}', "inner.flag", "inner.flag must be true or false, not 1"),
        (b'{"inner": []}', "inner", "inner must be an object, not []"),
        (b'{"items": ["a", null]}', "items[1]", "items[1] must be an integer or a string, not null"),  # noqa: E501
        (b'{"table": {"a": "b"}}', "table.a", 'table.a must be a number, not "b"'),
        (b'{"number": 1e999}', "number", "number: number out of range"),
        (b'{"table": {"a": 1e999}}', "table", "table: number out of range"),
        (b'{"free": {"a": {"b": [1, 1e999]}}}', "free", "free: number out of range"),
    ],
)  # fmt: skip
def test_invalid_field(body, param, message):
    with pytest.raises(InvalidField) as caught:
        decode(body, Schema)
    assert (caught.value.param, caught.value.message) == (param, message)


LONG = b"y" * 2_000_000
SHOWN = "y" * 56 + "..."


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"number": "%b"}', "number", f'number must be a number, not "{SHOWN}'),
        (b'{"number": {"a": ["%b"]}}', "number", 'number must be a number, not {"a": ["' + SHOWN[7:]),  # noqa: E501
        (b'{"number": {"%b": 1}}', "number", f'number must be a number, not {{"{SHOWN[1:]}'),
        (b'{"table": {"a": "%b"}}', "table.a", f'table.a must be a number, not "{SHOWN}'),
        (b'{"table": {"%b": "z"}}', f"table.{'y' * 20}", f"table.{'y' * 20} must be a number, not \"z\""),  # noqa: E501
        (b'{"kind": "%b"}', "kind", f"kind: invalid enum value '{'y' * 60}'"),
        (b'{"x": {"%b": NaN}}', ("x." + "y" * 98), f"the body is not valid JSON: x.{'y' * 98} must be a finite number, not NaN"),  # noqa: E501
        (b'{"x": "%b", nothing}', None, "the body is not valid JSON: JSON is malformed: object keys must be strings"),  # noqa: E501
        (b'{"x": "%b\\z"}', None, "the body is not valid JSON: JSON is malformed: invalid escape character in string"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_fault_beside_a_long_string_is_told_in_the_words_of_the_client(body, param, message):
    with pytest.raises(RequestError) as caught:
        decode(body.replace(b"%b", LONG), Schema)
    assert (caught.value.param, caught.value.message) == (param, message)


def test_a_fault_in_a_huge_body_is_told_without_reading_it_again():
    with pytest.raises(InvalidField, match=r"^number must be a number$"):
        decode(b'{"items": [' + b'"a string",' * 200_000 + b'1], "number": "x"}', Schema)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xff", "not valid UTF-8"),
        (b"{", "not valid JSON"),
        (b"NaN", "not valid JSON"),
        (b'{"x": NaN' + b"[" * 500, "nested more than 100 levels"),
        (b'{"x": "' + b"[" * 500 + b'", NaN', "not valid JSON"),
        (b'{"x": [' + b"1," * 1_000_000 + b"1]}", "more than 500000 values"),
        (b'{"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "nested more than 100 levels"),
        (b'{"x":' * 50 + b"NaN" + b"}" * 50 + b"}", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"x":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 100 levels"),
        (b'{"x":' + b"[" * 2000 + b"NaN", "nested more than 100 levels"),
    ],
)
def test_malformed(body, message):
    with pytest.raises(MalformedBody, match=message):
        decode(body, Schema)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"number": NaN}', "number", "number must be a finite number, not NaN"),
        (b'{"x": {"y": [1, -Infinity]}}', "x.y[1]", "x.y[1] must be a finite number, not -Infinity"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_number_that_is_no_json_is_named(body, param, message):
    with pytest.raises(MalformedBody) as caught:
        decode(body, Schema)
    assert caught.value.param == param
    assert caught.value.message == f"the body is not valid JSON: {message}"


def test_the_name_of_a_field_is_repeated_in_part_only():
    with pytest.raises(MalformedBody) as caught:
        decode(b'{"' + b"x" * 10_000 + b'": NaN}', Schema)
    assert len(caught.value.message) < 200


def test_integers_are_numbers_and_unknown_keys_are_ignored():
    assert decode(b'{"number": 3, "unknown": {"number": "x"}}', Schema).number == 3


def test_show_cuts_long_values():
    assert show("a" * 100) == '"' + "a" * 56 + "..."
    assert show([1, None, True]) == "[1, null, true]"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"items": [[]], "items": {}}', "items[0]", "items[0] must be an integer or a string"),
        (b'{"items": [null], "items": []}', "items[0]", "items[0] must be an integer or a string"),
        (b'{"number": "x", "number": 1}', "number", "number must be a number"),
        (b'{"number": 1, "number": "x"}', "number", "number must be a number"),
        (b'{"inner": {"flag": 1}, "inner": 5}', "inner.flag", "inner.flag must be true or false"),
        (b'{"table": {"a": "b"}, "table": 5}', "table", "table must be a number"),
        (b'{"table": {"a": "b", "a": 1, "c": null}}', "table.c", "table.c must be a number, not null"),  # noqa: E501
        (b'{"number": "x", "y": NaN, "z": %s}' % (b"1" * 5000), "number", "number must be a number"),  # noqa: E501
    ],
)  # fmt: skip
def test_the_value_of_a_repeated_key_is_not_told(body, param, message):
    with pytest.raises(InvalidField) as caught:
        decode(body, Schema)
    assert (caught.value.param, caught.value.message) == (param, message)


def test_half_of_a_character_in_a_key_is_told_as_its_escape():
    with pytest.raises(MalformedBody) as caught:
        decode(rb'{"number": 1, "\ud800": NaN}', Schema)
    assert caught.value.param == r"\ud800"
    assert caught.value.message.endswith(r"\ud800 must be a finite number, not NaN")
