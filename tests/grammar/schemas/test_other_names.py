"""Expressions of what is none of some names."""

from __future__ import annotations

import re

import pytest

from fastovms.grammar.schemas.other_names import other_names


@pytest.mark.parametrize(
    "names", [["a"], [""], ["name", "names", "na", "age"], ["a.b", "a-b", "[^]", "\\", "é", "a\n"]]
)
def test_all_but_the_names_match(names: list[str]) -> None:
    expression = re.compile(other_names(names).strip("^$"))
    others = [name[:-1] for name in names] + [f"{name}x" for name in names]
    others += [f"x{name}" for name in names] + [f"{name}\n" for name in names] + ["", "b", "\r\n"]
    for name in names:
        assert expression.fullmatch(name) is None
    for other in {*others} - {*names}:
        assert expression.fullmatch(other) is not None, other
