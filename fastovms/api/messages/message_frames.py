"""Writes the events of a streamed message."""

from __future__ import annotations

from typing import Any, Final

import orjson

from fastovms.api.generation.deltas import SampleDelta
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.messages.answer_form import (
    AnswerForm,
    ending,
    message_usage,
    text_block,
    tool_use,
    usage_body,
)
from fastovms.api.messages.message_body import opening_members
from fastovms.api.wire.error_responses import last_frames
from fastovms.api.wire.sse_frames import END, START, frame
from fastovms.params import FinishReason
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)

_PING: Final = frame(b'{"type":"ping"}', "ping")
_DELTA: Final = b"event: content_block_delta\n" + START + b'{"type":"content_block_delta","index":'


class MessageFrames:
    """Encodes one stream (`delta_stream.Frames`): blocks one after the other, each of which begins,
    grows and ends."""

    def __init__(
        self, envelope: Envelope, generation: TextGeneration, form: AnswerForm, request_id: str
    ) -> None:
        self._envelope = envelope
        self._generation = generation
        self._form = form
        self._request_id = request_id
        self._is_open = False
        # Which type of piece the block that is open is made of; None = no block is.
        self._kind: type[Piece] | None = None
        self._index = -1
        self._thoughts: list[str] = []
        self._are_whole: list[bool] = []
        # Why the text has ended, and by which stop string or token.
        self._reason = FinishReason.STOP
        self._stop: str | int | None = None

    def delta(self, delta: SampleDelta) -> bytes:
        frames = [self._opening()]
        for piece in delta.pieces:
            if self._form.shown.shows(piece):
                frames += self._events(piece)
        if delta.finish_reason is not None:
            frames += self._close()
            self._reason, self._stop = delta.finish_reason, delta.stop_reason
        return b"".join(frames)

    def opening_length(self, choice: int) -> int:
        return 0

    def end(self) -> bytes:
        usage = self._generation.usage
        ended = self._form.ending(
            self._reason, self._stop, self._are_whole, usage.completion_tokens
        )
        told = _event("message_delta", delta=ended, usage=usage_body(usage))
        return told + _event("message_stop")

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._envelope.dialect, self._request_id)

    def _opening(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        message = {
            **opening_members(self._envelope),
            "content": [],
            **ending(None),
            "usage": message_usage(self._generation.usage),
        }
        return _event("message_start", message=message) + _PING

    def _events(self, piece: Piece) -> list[bytes]:
        match piece:
            case Content(text=text):
                begun = self._begin(Content, text_block(""))
                return [*begun, self._more(b"text_delta", b"text", text)]
            case Reasoning(text=text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                begun = self._begin(Reasoning, block)
                self._thoughts.append(text)
                if not self._form.thinking(text):
                    return begun
                return [*begun, self._more(b"thinking_delta", b"thinking", text)]
            case CallBegin(name=name):
                return self._begin(CallBegin, tool_use(self._form.new_call_id(), name, {}))
            case CallArguments(text=text):
                return [self._more(b"input_json_delta", b"partial_json", text)]
            case CallEnd(complete=is_whole):
                self._are_whole.append(is_whole)
                return self._close()

    def _begin(self, kind: type[Piece], block: dict[str, Any]) -> list[bytes]:
        """Begins a block, unless one is open that the piece is a part of."""
        if self._kind is kind:
            return []
        closed = self._close()
        self._kind = kind
        self._index += 1
        return [*closed, _event("content_block_start", index=self._index, content_block=block)]

    def _more(self, kind: bytes, member: bytes, text: str) -> bytes:
        return b'%b%d,"delta":{"type":"%b","%b":%b}}%b' % (
            _DELTA,
            self._index,
            kind,
            member,
            orjson.dumps(text),
            END,
        )

    def _close(self) -> list[bytes]:
        if self._kind is None:
            return []
        frames = []
        if self._kind is Reasoning:
            signature = self._form.signature("".join(self._thoughts))
            frames.append(self._more(b"signature_delta", b"signature", signature))
            self._thoughts.clear()
        self._kind = None
        return [*frames, _event("content_block_stop", index=self._index)]


def _event(kind: str, **members: object) -> bytes:
    return frame(orjson.dumps({"type": kind, **members}), kind)
