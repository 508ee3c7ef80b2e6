"""Formats of reasoning are known by the marks in templates."""

from __future__ import annotations

import pytest

from fastovms.text.reasoning.think import think_format


@pytest.mark.parametrize(
    ("template", "is_taught"), [("a <b> <c>", True), ("<d>", True), ("<b>", False), ("", False)]
)
def test_all_texts_of_a_mark_have_to_be_there(template: str, is_taught: bool) -> None:
    found = think_format("x", marks=(("<b>", "<c>"), ("<d>",)))
    assert found.is_taught_by(template) is is_taught
    assert not think_format("x").is_taught_by(template)
