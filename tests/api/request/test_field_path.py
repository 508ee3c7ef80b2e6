"""Where a text stands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fastovms.api.request.field_path import place_of


class Body(msgspec.Struct):
    first: Any = None
    second: Any = msgspec.UNSET


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (Body(), None),
        (Body("a b", "X"), "second"),
        (Body("aXb", "X"), "first"),
        (Body(5, ["a", {"b": [None, "X"]}]), "second[1].b[1]"),
        (Body({"a": {"X": 1}}), "first.a"),
        (Body([["x"], ["X"]]), "first[1][0]"),
        (Body(True, 1.5), None),
    ],
)
def test_the_first_place_is_named(body, place):
    assert place_of("X", body) == place
