"""Writes the body of a message that is told as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.generation.envelope import Envelope
from fastovms.api.messages.answer_form import AnswerForm, message_usage, text_block, tool_use
from fastovms.params import FinishReason
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)


def message_body(
    envelope: Envelope, sample: SampleDelta, form: AnswerForm, usage: Usage
) -> dict[str, Any]:
    """Returns a message. `sample` holds its whole text."""
    pieces = [piece for piece in sample.pieces if form.shown.shows(piece)]
    are_whole = [piece.complete for piece in pieces if isinstance(piece, CallEnd)]
    reason = sample.finish_reason or FinishReason.STOP
    return {
        **opening_members(envelope),
        "content": _blocks(pieces, form),
        **form.ending(reason, sample.stop_reason, are_whole, usage.completion_tokens),
        "usage": message_usage(usage),
    }


def opening_members(envelope: Envelope) -> dict[str, Any]:
    """Returns the members that a message begins with."""
    return {
        "id": envelope.id,
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
    }


def _blocks(pieces: Iterable[Piece], form: AnswerForm) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    arguments: list[str] = []
    for piece in pieces:
        match piece:
            case Content(text=text):
                blocks.append(text_block(text))
            case Reasoning(text=text):
                shown, signature = form.thinking(text), form.signature(text)
                blocks.append({"type": "thinking", "thinking": shown, "signature": signature})
            case CallBegin(name=name):
                arguments = []
                blocks.append(tool_use(form.new_call_id(), name, {}))
            case CallArguments(text=text):
                arguments.append(text)
            case CallEnd(complete=True):
                blocks[-1]["input"] = orjson.Fragment("".join(arguments) or "{}")
    return blocks
