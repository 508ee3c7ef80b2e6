"""Kimi K2."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools.named_formats.kimi_k2 import KIMI_K2
from tests.text.tools.checks import SHOP, call, check_sample

SEARCH = call(0, "search", '{"query": "a"}')


def one(name: str, arguments: str = '{"query": "a"}') -> str:
    begin = f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>"
    return f"{begin}{arguments}<|tool_call_end|>"


def section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (f"I look. {section(one('functions.search:0'))}", [Content("I look."), *SEARCH]),
        (section(one("functions.search:0"), one("functions.now:1", "{}")),
         [*SEARCH, *call(1, "now", "{}")]),
        (section(one("search:0")), SEARCH),
        (section(one("functions.search:0 ")), SEARCH),
        (one("functions.search:0"), SEARCH),
        (section("<|tool_call_begin|>functions.now:0<|tool_call_end|>"),
         [Content(section("<|tool_call_begin|>functions.now:0<|tool_call_end|>"))]),
        ("<|tool_calls_section_begin|>x", [Content("<|tool_calls_section_begin|>x")]),
    ],
)  # fmt: skip
def test_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(KIMI_K2, text, pieces, SHOP)
