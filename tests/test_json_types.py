"""Tests of `fastovms/json_types.py`."""

from __future__ import annotations

import orjson
import pytest

from fastovms import json_types
from fastovms.json_types import json_type, on_one_line, resolve

DOCUMENT = {"$defs": {"a": {"x": 1}, "b/c": 2, "d~e": 3, "f g": 4, "": 5, "~1": 6}, "l": [7, [8]]}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", DOCUMENT),
        ("#/$defs/a", {"x": 1}),
        ("#/$defs/a/x", 1),
        ("#/$defs/b~1c", 2),
        ("#/$defs/d~0e", 3),
        ("#/$defs/f%20g", 4),
        ("#/$defs/", 5),
        ("#/$defs/~01", 6),
        ("#/l/0", 7),
        ("#/l/1/0", 8),
    ],
)
def test_json_pointer_is_resolved_in_the_document(reference: str, target: object) -> None:
    assert resolve(reference, DOCUMENT) == target


@pytest.mark.parametrize(
    "reference",
    ["", "a", "#a", "https://example.org/#/l", "/l/0", "#/m", "#/$defs/a/x/y", "#/l/2", "#/l/-1",
     "#/l/x", "#/l/²", "#/l/", "#/l/" + 5000 * "1"],
)  # fmt: skip
def test_dangling_reference_is_a_lookup_error(reference: str) -> None:
    with pytest.raises(LookupError):
        resolve(reference, DOCUMENT)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "integer"),
        (1.0, "number"),
        ("", "string"),
        ({}, "object"),
        ([], "array"),
    ],
)
def test_json_type_of_each_python_value(value: object, name: str) -> None:
    assert json_type(value) == name


# JSON is one line for all that splits text.


@pytest.mark.parametrize("end", [*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"])
def test_no_text_ends_a_line(end: str) -> None:
    value = {f"a{end}b": f"é{end}\\{end}"}
    line = on_one_line(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    assert len(line.decode().splitlines()) == 1
    assert line.endswith(b"\n")
    assert orjson.loads(line) == value


@pytest.mark.parametrize("size", range(1, 9))
def test_a_long_text_is_looked_at_in_pieces(monkeypatch, size: int) -> None:
    monkeypatch.setattr(json_types, "_PIECE", size)
    value = "a\u2028é\x85\U0001f600b\u2029" * 3
    line = on_one_line(orjson.dumps(value))
    assert line.count(b"\\u2028") == line.count(b"\\u0085") == line.count(b"\\u2029") == 3
    assert orjson.loads(line) == value
