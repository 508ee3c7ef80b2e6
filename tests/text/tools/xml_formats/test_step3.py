"""Step 3."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools.xml_formats.step3 import STEP3
from tests.text.tools.checks import SHOP, call, check_sample

SEARCH = call(0, "search", '{"query":"a"}')
NOW = call(0, "now", "{}")
ALL, BEGIN = "<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"
INVOKE = (
    '<steptml:invoke name="search"><steptml:parameter name="query">a</steptml:parameter>'
    "</steptml:invoke>"
)
CALL = f"{BEGIN}{INVOKE}<｜tool_call_end｜>"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (f"{ALL}{CALL}<｜tool_calls_end｜>", SEARCH),
        (f"{ALL}{CALL}<｜tool_sep｜>{CALL}<｜tool_calls_end｜>",
         [*SEARCH, *call(1, "search", '{"query":"a"}')]),
        (f"I look.\n\n{ALL}{CALL}<｜tool_calls_end｜>\n\nDone.",
         [Content("I look."), *SEARCH, Content("\n\n\n\nDone.")]),
        (f"{ALL}{BEGIN}function<｜tool_sep｜>{INVOKE}<｜tool_call_end｜><｜tool_calls_end｜>",
         SEARCH),
        (f"{ALL}{BEGIN}function<｜tool_sep｜>search\n{INVOKE}<｜tool_call_end｜><｜tool_calls_end｜>",
         SEARCH),
        (f'{ALL}{BEGIN}<steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜>', NOW),
        (f"{ALL}x<｜tool_calls_end｜>", [Content(f"{ALL}x<｜tool_calls_end｜>")]),
    ],
)  # fmt: skip
def test_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(STEP3, text, pieces, SHOP)
