"""The events of a stream, one block after the other."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import orjson

from fastovms.api.conversation.sealed_text import seal
from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.messages.answer_form import AnswerForm
from fastovms.api.messages.message_frames import MessageFrames
from fastovms.api.wire.dialect import ANTHROPIC
from fastovms.errors import BackendUnavailable
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


def frames(*, omits_thinking: bool = False, **shown: bool) -> MessageFrames:
    ids = count(1)
    form = AnswerForm(
        ShownPieces(**shown), lambda: f"toolu_{next(ids)}", 2, omits_thinking=omits_thinking
    )
    generation = cast(TextGeneration, SimpleNamespace(usage=Usage(5, 2, 4)))
    return MessageFrames(ENVELOPE, generation, form, "r-1")


def told(data: bytes) -> list[Any]:
    """Each event, in short."""
    events = []
    for frame in data.split(b"\n\n")[:-1]:
        name, _, text = frame.partition(b"\ndata: ")
        event = orjson.loads(text)
        assert name == b"event: " + event["type"].encode()
        match event.pop("type"):
            case "content_block_start":
                events.append((event["index"], event["content_block"]["type"]))
            case "content_block_delta":
                delta = event["delta"]
                kind = delta.pop("type")
                events.append((event["index"], kind, *delta.values()))
            case "content_block_stop":
                events.append((event["index"], None))
            case kind:
                events.append(kind)
    return events


def delta(*pieces: Piece, reason: FinishReason | None = None) -> SampleDelta:
    return SampleDelta(0, "", reason, pieces=pieces)


def test_blocks_follow_each_other() -> None:
    sent = frames()
    assert told(sent.delta(delta())) == ["message_start", "ping"]
    assert told(sent.delta(delta(Reasoning("a"), Reasoning("b")))) == [
        (0, "thinking"),
        (0, "thinking_delta", "a"),
        (0, "thinking_delta", "b"),
    ]
    first, signature, *rest = told(sent.delta(delta(Reasoning("c"), Content("d"))))
    assert first == (0, "thinking_delta", "c")
    assert signature[:2] == (0, "signature_delta")
    assert rest == [(0, None), (1, "text"), (1, "text_delta", "d")]
    calls = delta(
        *(CallBegin(0, "f"), CallArguments(0, "{}"), CallEnd(0, True)),
        *(CallBegin(1, "g"), CallEnd(1, True), Content("e")),
    )
    assert told(sent.delta(calls)) == [
        (1, None),
        (2, "tool_use"),
        (2, "input_json_delta", "{}"),
        (2, None),
        (3, "tool_use"),
        (3, None),
        (4, "text"),
        (4, "text_delta", "e"),
    ]
    assert told(sent.delta(delta(reason=FinishReason.STOP))) == [(4, None)]
    end = sent.end()
    assert told(end) == ["message_delta", "message_stop"]
    assert b'"stop_reason":"tool_use"' in end
    assert b'"input_tokens":1,"cache_creation_input_tokens":0,"cache_read_input_tokens":4' in end


def test_what_is_not_shown_has_no_block() -> None:
    sent = frames(hides_content=True, hides_reasoning=True, one_call=True)
    pieces = (Reasoning("a"), Content("b"), CallBegin(1, "g"), CallEnd(1, True))
    last = delta(*pieces, reason=FinishReason.STOP)
    assert told(sent.delta(last)) == ["message_start", "ping"]
    assert b'"stop_reason":"end_turn"' in sent.end()


def test_thoughts_that_are_not_shown_are_sealed() -> None:
    sent = frames(omits_thinking=True)
    sent.delta(delta())
    assert told(sent.delta(delta(Reasoning("a"), Reasoning("b"), Content("c")))) == [
        (0, "thinking"),
        (0, "signature_delta", seal("ab")),
        (0, None),
        (1, "text"),
        (1, "text_delta", "c"),
    ]


def test_failures() -> None:
    [name, data, *_] = frames().failure(BackendUnavailable("draining")).split(b"\n")
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "draining"},
        "request_id": "r-1",
    }
