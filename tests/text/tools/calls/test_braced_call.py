"""Calls with their arguments in braces, in a form made up for the test."""

from __future__ import annotations

import pytest

from fastovms.text.output_grammar import call_grammar
from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools import CallChoice
from fastovms.text.tools.calls.braced_call import braced_calls
from tests.text.tools.checks import SHOP, call, check_sample
from tests.vocabularies import vocabulary

FORMAT = braced_calls("braced", "<c>", "</c>", "<q>")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<c>call:search{query:<q>a,b<q>,limit:2}</c>",
         call(0, "search", '{"query":"a,b","limit":2}')),
        ("<c>call:now{}, call:now{}</c>", call(0, "now", "{}") + call(1, "now", "{}")),
        ("<c>call:search{query:5,limit:five}</c>",
         call(0, "search", '{"query":"5","limit":"five"}')),
        ("<c>call:now{a}</c>", [*call(0, "now", "{", complete=False), Content("}</c>")]),
        ("<c>call now{}</c>", [Content("<c>call now{}</c>")]),
    ],
)  # fmt: skip
def test_calls_are_read(text: str, pieces: list[Piece]) -> None:
    check_sample(FORMAT, text, pieces, SHOP)


def test_calls_are_written() -> None:
    grammar = call_grammar(FORMAT, None, CallChoice(SHOP, required=True), prompt="")
    for specials in ((), FORMAT.tags):
        accepts = vocabulary(*specials).accepts
        assert (
            accepts(grammar, "<c>call:search{query:<q>a<q>,limit:2}</c><c>call:now{}</c>") is True
        )
        assert accepts(grammar, "<c>call:search{query:a}</c>") is False
        assert accepts(grammar, "<c>call:search{limit:2}</c>") is False
