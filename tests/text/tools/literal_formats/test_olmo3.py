"""OLMo 3."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools.literal_formats.olmo3 import OLMO3
from tests.text.tools.checks import SHOP, call, check_sample

SEARCH = call(0, "search", '{"query":"a"}')
NOW = call(0, "now", "{}")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ('<function_calls>\nsearch(query="a")\n</function_calls>', SEARCH),
        ("<function_calls>search(query='a')\nnow()</function_calls> ok",
         [*SEARCH, *call(1, "now", "{}"), Content("ok")]),
        ("I look.\n<function_calls>\nnow()\n</function_calls>", [Content("I look."), *NOW]),
        ("<function_calls>\nnow()\n</functi", NOW),
        ("<function_calls>\nnow", []),
    ],
)  # fmt: skip
def test_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(OLMO3, text, pieces, SHOP)
