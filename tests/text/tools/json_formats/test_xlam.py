"""xLAM."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools.json_formats.xlam import XLAM
from tests.text.tools.checks import SHOP, call, check_sample

SEARCH = call(0, "search", '{"query": "a"}')


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ('[{"name": "search", "arguments": {"query": "a"}}, {"name": "now", "arguments": {}}]',
         [*SEARCH, *call(1, "now", "{}")]),
        ('I help.\n```json\n[{"name": "search", "arguments": {"query": "a"}}]\n```',
         [Content("I help."), *SEARCH]),
        ('I look.[TOOL_CALLS][{"name": "search", "arguments": {"query": "a"}}]',
         [Content("I look."), *SEARCH]),
        ('I look.<tool_call>[{"name": "search", "arguments": {"query": "a"}}]</tool_call>',
         [Content("I look."), *SEARCH]),
        ("[1, 2] is a list", [Content("[1, 2] is a list")]),
    ],
)  # fmt: skip
def test_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(XLAM, text, pieces, SHOP)
