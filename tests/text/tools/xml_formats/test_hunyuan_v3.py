"""Hunyuan 3."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools.xml_formats.hunyuan_v3 import HUNYUAN_V3
from tests.text.tools.checks import SHOP, call, check_sample

SEARCH = call(0, "search", '{"query":"a"}')
NOW = call(0, "now", "{}")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<tool_calls><tool_call>now<tool_sep></tool_call></tool_calls>", NOW),
        ("<tool_calls>\n<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>", NOW),
        ("<tool_calls><tool_call>search<tool_sep><arg_key>query</arg_key><arg_value>a</arg_value>"
         "</tool_call></tool_calls>", SEARCH),
        ("Checking.<tool_calls>\n<tool_call>search<tool_sep>\n<arg_key>query</arg_key>\n<arg_value>a"
         "</arg_value>\n</tool_call>\n<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>",
         [Content("Checking."), *SEARCH, *call(1, "now", "{}")]),
        ("<tool_calls>x", [Content("<tool_calls>x")]),
    ],
)  # fmt: skip
def test_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(HUNYUAN_V3, text, pieces, SHOP)
