"""What is left out of an answer."""

from __future__ import annotations

import pytest

from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.text.scanning.output import CallArguments, CallBegin, CallEnd, Content, Reasoning

PIECES = [
    Content("a"),
    Reasoning("b"),
    CallBegin(0, "f"),
    CallArguments(0, "{}"),
    CallEnd(0, True),
    CallBegin(1, "g"),
]


@pytest.mark.parametrize(
    ("shown", "indices"),
    [
        (ShownPieces(), [0, 1, 2, 3, 4, 5]),
        (ShownPieces(hides_content=True), [1, 2, 3, 4, 5]),
        (ShownPieces(hides_reasoning=True), [0, 2, 3, 4, 5]),
        (ShownPieces(one_call=True), [0, 1, 2, 3, 4]),
    ],
)
def test_shown(shown: ShownPieces, indices: list[int]) -> None:
    assert [index for index, piece in enumerate(PIECES) if shown.shows(piece)] == indices
