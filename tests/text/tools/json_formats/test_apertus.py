"""Apertus."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools.json_formats.apertus import APERTUS
from tests.text.tools.checks import SHOP, call, check_sample

SEARCH = call(0, "search", '{"query": "a"}')


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ('<|tools_prefix|>[{"search": {"query": "a"}}]<|tools_suffix|>', SEARCH),
        ('<|tools_prefix|>[{"search": {"query": "a"}}, {"now": {}}]<|tools_suffix|>ok',
         [*SEARCH, *call(1, "now", "{}"), Content("ok")]),
        ('Let me look. <|tools_prefix|>[{"search": {"query": "a"}}]',
         [Content("Let me look."), *SEARCH]),
        ('<|tools_prefix|>[{"search": {"query": "a"}', SEARCH),
        ('<|tools_prefix|>[{"search": {"query": "a',
         call(0, "search", '{"query": "a', complete=False)),
        ("<|tools_prefix|>[]<|tools_suffix|>", [Content("<|tools_prefix|>[]<|tools_suffix|>")]),
        ("<|tools_prefix|>x", [Content("<|tools_prefix|>x")]),
    ],
)  # fmt: skip
def test_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(APERTUS, text, pieces, SHOP)
