"""Deltas: what they weigh, and what several of them are together."""

from __future__ import annotations

import pytest

from fastovms.api.generation.deltas import SampleDelta, merged
from fastovms.params import FinishReason
from fastovms.text.scanning.output import CallArguments, CallBegin, Content
from fastovms.text.tokens.tracking import TextToken

TOKEN = TextToken(1, 0, None)


@pytest.mark.parametrize(
    ("delta", "size", "is_empty"),
    [
        (SampleDelta(0, ""), 0, True),
        (SampleDelta(0, "", FinishReason.STOP, num_tokens=3), 0, True),
        (SampleDelta(0, "abc"), 3, False),
        (SampleDelta(0, "", tokens=[TOKEN, TOKEN]), 512, False),
        (SampleDelta(0, "", pieces=[Content("ab")], parsed="abcd"), 6, False),
        (SampleDelta(0, "", pieces=[CallBegin(0, "f"), CallArguments(0, "{}")]), 258, False),
    ],
)
def test_what_a_delta_weighs(delta: SampleDelta, size: int, is_empty: bool) -> None:
    assert (delta.size, delta.is_empty) == (size, is_empty)


def test_deltas_together_are_the_last_with_the_texts_of_all() -> None:
    first = SampleDelta(1, "a", num_tokens=1, tokens=[TOKEN], pieces=[Content("a")], parsed="x")
    last = SampleDelta(
        1, "b", FinishReason.LENGTH, "stop", 2, [TOKEN._replace(token_id=2)], [Content("b")], "y"
    )
    assert merged([first, last]) == SampleDelta(
        1,
        "ab",
        FinishReason.LENGTH,
        "stop",
        2,
        [TOKEN, TOKEN._replace(token_id=2)],
        [Content("ab")],
        "xy",
    )
