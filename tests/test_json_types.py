from __future__ import annotations

import pytest

from fastovms.json_types import json_type, resolve

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
def test_references(reference: str, target: object) -> None:
    assert resolve(reference, DOCUMENT) == target


@pytest.mark.parametrize(
    "reference",
    ["", "a", "#a", "https://example.org/#/l", "/l/0", "#/m", "#/$defs/a/x/y", "#/l/2", "#/l/-1",
     "#/l/x", "#/l/²", "#/l/", "#/l/" + 5000 * "1"],
)  # fmt: skip
def test_what_points_nowhere(reference: str) -> None:
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
def test_types(value: object, name: str) -> None:
    assert json_type(value) == name
