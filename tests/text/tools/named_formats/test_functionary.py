"""Functionary, in two versions."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools.named_formats.functionary import FUNCTIONARY_V31, FUNCTIONARY_V32
from tests.text.tools.checks import SHOP, call, check_sample

SEARCH = call(0, "search", '{"query": "a"}')
ARGUMENTS = '{"query": "a"}'


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (f"<function=search>{ARGUMENTS}</function>", SEARCH),
        (f"A.<function=search>{ARGUMENTS}</function>\n<function=now></function>",
         [Content("A."), *SEARCH, *call(1, "now", "{}")]),
        ("<function=now>x", [Content("<function=now>x")]),
        ("<function=a", []),
    ],
)  # fmt: skip
def test_elements(text: str, pieces: list[Piece]) -> None:
    check_sample(FUNCTIONARY_V31, text, pieces, SHOP)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("all\nHello", [Content("Hello")]),
        (f"search\n{ARGUMENTS}", SEARCH),
        (f"search\n{ARGUMENTS}>>>now\n{{}}", [*SEARCH, *call(1, "now", "{}")]),
        (f"all\nI look.\n>>>search\n{ARGUMENTS}", [Content("I look."), *SEARCH]),
        (f">>>all\nI look.\n>>>search\n{ARGUMENTS}", [Content("I look."), *SEARCH]),
        ("allow me", [Content("allow me")]),
        ("other\n{}", [Content("other\n{}")]),
        ("al", []),
    ],
)
def test_parts_behind_a_sign(text: str, pieces: list[Piece]) -> None:
    check_sample(FUNCTIONARY_V32, text, pieces, SHOP)
