"""Pieces of an answer as the blocks of a message."""

from __future__ import annotations

from itertools import count
from typing import Any

import orjson
import pytest

from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.generation.envelope import Envelope
from fastovms.api.messages.answer_form import AnswerForm
from fastovms.api.messages.message_body import message_body
from fastovms.api.wire.dialect import ANTHROPIC
from fastovms.params import FinishReason
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)

ENVELOPE = Envelope("msg_1", 0, "fake", "fp", ANTHROPIC)


def body(pieces: list[Piece], **shown: bool) -> dict[str, Any]:
    ids = count(1)
    form = AnswerForm(ShownPieces(**shown), lambda: f"toolu_{next(ids)}", 9)
    sample = SampleDelta(0, "", FinishReason.STOP, pieces=pieces)
    told: dict[str, Any] = orjson.loads(
        orjson.dumps(message_body(ENVELOPE, sample, form, Usage(5, 2, 0)))
    )
    return told


def use(number: int, **arguments: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": arguments}
    return {**block, "caller": {"type": "direct"}}


@pytest.mark.parametrize(
    ("pieces", "shown", "content", "reason"),
    [
        ([], {}, [], "end_turn"),
        ([Content("a")], {}, [{"type": "text", "text": "a", "citations": None}], "end_turn"),
        ([Content("a")], {"hides_content": True}, [], "end_turn"),
        (
            [
                CallBegin(0, "f"),
                CallArguments(0, '{"a":'),
                CallArguments(0, "1}"),
                CallEnd(0, True),
            ],
            {},
            [use(1, a=1)],
            "tool_use",
        ),
        (
            [CallBegin(0, "f"), CallEnd(0, True), CallBegin(1, "f"), CallEnd(1, True)],
            {},
            [use(1), use(2)],
            "tool_use",
        ),
        (
            [CallBegin(0, "f"), CallEnd(0, True), CallBegin(1, "f"), CallEnd(1, True)],
            {"one_call": True},
            [use(1)],
            "tool_use",
        ),
        (
            [CallBegin(0, "f"), CallArguments(0, '{"a":'), CallEnd(0, False), Content("b")],
            {},
            [use(1), {"type": "text", "text": "b", "citations": None}],
            "end_turn",
        ),
    ],
)
def test_bodies(
    pieces: list[Piece], shown: dict[str, bool], content: list[Any], reason: str
) -> None:
    told = body(pieces, **shown)
    assert (told["content"], told["stop_reason"]) == (content, reason)


def test_thoughts() -> None:
    [block] = body([Reasoning("hm")])["content"]
    assert (block["type"], block["thinking"]) == ("thinking", "hm")
    assert body([Reasoning("hm")], hides_reasoning=True)["content"] == []
