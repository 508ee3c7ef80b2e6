"""What the client of a chat is shown of an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.api.chat.call_forms import CallForms
from fastovms.api.chat.message_form import ChatMessageForm
from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.conversation.tool_targets import ToolTarget
from fastovms.api.generation.alignment import ContentTokens
from fastovms.api.wire.dialect import OPENAI, OVMS
from fastovms.params import FinishReason
from fastovms.text.scanning.output import CallArguments, CallBegin, Content, Piece, Reasoning

FORM = ChatMessageForm(
    role="assistant",
    prefix="",
    shown=ShownPieces(),
    is_named=False,
    drops_cut_call=False,
    may_call=True,
    calls=CallForms(ToolTarget, lambda: "call_1"),
    new_content_tokens=lambda: ContentTokens(None),
)
PIECES: list[Piece] = [
    Content("a"),
    Reasoning("b"),
    CallBegin(0, "f"),
    CallArguments(0, "{}"),
    CallBegin(1, "g"),
]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"hides_content": True}, [1, 2, 3, 4]),
        ({"hides_reasoning": True}, [0, 2, 3, 4]),
        ({"one_call": True}, [0, 1, 2, 3]),
    ],
)
def test_pieces_that_the_client_gets(fields: dict[str, bool], shown: list[int]) -> None:
    form = replace(FORM, shown=ShownPieces(**fields))
    assert [index for index, piece in enumerate(PIECES) if form.shows(piece)] == shown


@pytest.mark.parametrize(
    ("is_named", "reason", "are_whole", "expected"),
    [
        (False, FinishReason.STOP, [], "stop"),
        (False, FinishReason.STOP, [True, True], "tool_calls"),
        (False, FinishReason.STOP, [True, False], "stop"),
        (False, FinishReason.LENGTH, [True], "length"),
    ],
)
def test_finish_reasons(
    is_named: bool, reason: FinishReason, are_whole: list[bool], expected: str
) -> None:
    for dialect in (OPENAI, OVMS):
        assert (
            replace(FORM, is_named=is_named).finish_reason(reason, are_whole, dialect) == expected
        )


@pytest.mark.parametrize("dialect", [OPENAI, OVMS])
def test_a_call_of_the_function_that_the_request_names(dialect) -> None:
    form = replace(FORM, is_named=True)
    expected = "stop" if dialect.ends_named_call_with_stop else "tool_calls"
    assert form.finish_reason(FinishReason.STOP, [True], dialect) == expected
