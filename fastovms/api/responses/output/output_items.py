"""Builds the output items of a response from the pieces of an answer, and the events that tell of
each.

Items are built one at a time: what is open is ended before the next one is added, so that events
nest and `output_index` never decreases. A call that is whole stays open too, until something comes
after it: where nothing does, as the answer was cut behind it, it is the item that is not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from fastovms.api.conversation.sealed_text import seal
from fastovms.api.conversation.tool_targets import ToolTarget
from fastovms.api.generation.alignment import TokenAligner
from fastovms.api.responses.input.hosted_items import Item
from fastovms.api.responses.input.input_items import NewId
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)
from fastovms.text.tokens.tracking import TextToken

Emit = Callable[[str, Mapping[str, object]], None]
"""Takes an event: its type without "response.", and its further members."""

TellLogprobs = Callable[[Sequence[TextToken]], list[bytes]]
"""Returns the JSON texts of log probabilities, one a token."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How an answer becomes items.

    Attributes:
        new_id, new_call_id: make the ids of items and of calls.
        summarizes_reasoning: whether reasoning is told as a summary, as OVMS does, rather than as
            text.
        seals_reasoning: whether it is in `encrypted_content` too.
        max_calls: calls after so many are left out; None = none is.
        target: returns what a function that the model calls is to the client.
        hides_content: whether what is no call is left out: the beginning of one that was cut.
        aligner: finds the tokens of the text; None = nothing is told of tokens.
        tell_logprobs: writes their log probabilities.
        max_logprobs_length: bytes of them that what is told of a whole text may have; a longer one
            is told without.
    """

    new_id: NewId
    new_call_id: Callable[[], str]
    target: Callable[[str], ToolTarget] = ToolTarget
    summarizes_reasoning: bool = False
    seals_reasoning: bool = False
    max_calls: int | None = None
    hides_content: bool = False
    aligner: TokenAligner | None = None
    tell_logprobs: TellLogprobs | None = None
    max_logprobs_length: int | None = None


@dataclass(frozen=True, slots=True)
class _TextKind:
    """How events call an item whose text is in one part.

    Attributes:
        member: the item's member that the part is in.
        index: name of the part's index.
        part_event, text_event: what begins and ends, with `.added`, `.delta` and `.done`.
    """

    prefix: str
    skeleton: Mapping[str, object]
    part: Mapping[str, object]
    member: str
    index: str
    part_event: str
    text_event: str


_MESSAGE: Final = _TextKind(
    "msg",
    {"type": "message", "status": "in_progress", "role": "assistant", "content": []},
    {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "content",
    "content_index",
    "content_part",
    "output_text",
)
_REASONING: Final = _TextKind(
    "rs",
    {"type": "reasoning", "status": "in_progress", "summary": [], "content": []},
    {"type": "reasoning_text", "text": ""},
    "content",
    "content_index",
    "content_part",
    "reasoning_text",
)
_SUMMARY: Final = _TextKind(
    "rs",
    {"type": "reasoning", "status": "in_progress", "summary": []},
    {"type": "summary_text", "text": ""},
    "summary",
    "summary_index",
    "reasoning_summary_part",
    "reasoning_summary_text",
)


@dataclass(frozen=True, slots=True)
class _CallKind:
    """How the item of a call is told.

    Attributes:
        member: what the model has written for the tool.
        event: what tells of it, with `.delta` and `.done`.
    """

    prefix: str
    type: str
    member: str
    event: str


_FUNCTION: Final = _CallKind("fc", "function_call", "arguments", "function_call_arguments")
_CUSTOM: Final = _CallKind("ctc", "custom_tool_call", "input", "custom_tool_call_input")


class _Open(Protocol):
    """The item that is being built."""

    def snapshot(self, status: str) -> Item:
        """Returns the item with what it has so far."""

    def end(self, status: str) -> Item: ...


class OutputBuilder:
    """Builds the output of one response.

    Attributes:
        items: those that are ended.
        has_cut_call: whether, in the sample that is not finished, a call has ended that is not
            whole.
    """

    def __init__(self, form: OutputForm, emit: Emit) -> None:
        self._form = form
        self._emit = emit
        self._open: _Open | None = None
        self._skips_call = False
        self.items: list[Item] = []
        self.has_cut_call = False

    def push(
        self, pieces: Iterable[Piece], text: str = "", tokens: Sequence[TextToken] = ()
    ) -> None:
        """Adds pieces.

        Args:
            text: what the pieces are found in; it may come before its pieces.
            tokens: those that begin in `text`, with offsets in characters.
        """
        aligner = self._form.aligner
        if aligner is not None:
            aligner.push(text, tokens)
        for piece in pieces:
            match piece:
                case Content(text=text):
                    if not self._form.hides_content:
                        self._say(text)
                case Reasoning(text=text):
                    if aligner is not None:
                        aligner.take(text)
                    kind = _SUMMARY if self._form.summarizes_reasoning else _REASONING
                    self._text(kind).add(text, [])
                case CallBegin(call_index=index, name=name):
                    limit = self._form.max_calls
                    self._skips_call = limit is not None and index >= limit
                    if not self._skips_call:
                        self._begin_call(name)
                case CallArguments(text=text):
                    if isinstance(self._open, _OpenCall) and not self._skips_call:
                        self._open.add(text)
                case CallEnd(complete=is_complete, position=position):
                    if aligner is not None:
                        aligner.skip_to(position)
                    if not is_complete and not self._skips_call:
                        self.end_item("incomplete")
                        self.has_cut_call = True

    def finish(self, status: str) -> None:
        """Ends the answer. One that says nothing has an empty message.

        Args:
            status: of the item that is open.
        """
        if self._is_empty:
            self._text(_MESSAGE)
        self.end_item(status)
        self.has_cut_call = False

    def end_item(self, status: str) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            self.items.append(opened.end(status))

    def snapshot(self) -> list[Item]:
        """Returns the items with the one that is open."""
        return self.items + ([] if self._open is None else [self._open.snapshot("in_progress")])

    @property
    def _is_empty(self) -> bool:
        return not self.items and self._open is None

    def _say(self, text: str) -> None:
        if not self._is_empty and not isinstance(self._open, _OpenText):
            text = text.lstrip()  # white space between a call and what is said after it
        if text:
            aligner = self._form.aligner
            tokens = [] if aligner is None else aligner.take(text)
            self._text(_MESSAGE).add(text, self._logprobs(tokens))

    def _text(self, kind: _TextKind) -> _OpenText:
        if isinstance(self._open, _OpenText) and self._open.kind is kind:
            return self._open
        self.end_item("completed")
        self._open = opened = _OpenText(kind, len(self.items), self._form, self._emit)
        return opened

    def _begin_call(self, name: str) -> None:
        self.end_item("completed")
        target = self._form.target(name)
        self._open = _OpenCall(target, len(self.items), self._form, self._emit)

    def _logprobs(self, tokens: Sequence[TextToken]) -> list[bytes]:
        tell = self._form.tell_logprobs
        return [] if tell is None or not tokens else tell(tokens)


class _OpenText:
    def __init__(self, kind: _TextKind, index: int, form: OutputForm, emit: Emit) -> None:
        self.kind = kind
        self._emit = emit
        self._seals = form.seals_reasoning and kind is not _MESSAGE
        self._max_length = form.max_logprobs_length
        self._texts: list[str] = []
        self._logprobs: list[bytes] = []
        self._length = 0
        self._id = form.new_id(kind.prefix)
        self._place = {"item_id": self._id, "output_index": index, kind.index: 0}
        item = {"id": self._id, **kind.skeleton}
        emit("output_item.added", {"output_index": index, "item": item})
        emit(f"{kind.part_event}.added", {**self._place, "part": kind.part})

    def add(self, text: str, logprobs: list[bytes]) -> None:
        self._texts.append(text)
        members: dict[str, object] = {**self._place, "delta": text}
        if self.kind is _MESSAGE:
            members["logprobs"] = [orjson.Fragment(entry) for entry in logprobs]
            self._length += sum(map(len, logprobs))
            if self._max_length is None or self._length <= self._max_length:
                self._logprobs += logprobs
            else:
                self._logprobs.clear()
        self._emit(f"{self.kind.text_event}.delta", members)

    def snapshot(self, status: str) -> Item:
        text = "".join(self._texts)
        part = {**self.kind.part, "text": text}
        if self.kind is _MESSAGE:
            part["logprobs"] = [orjson.Fragment(entry) for entry in self._logprobs]
        item = {"id": self._id, **self.kind.skeleton, "status": status, self.kind.member: [part]}
        if self._seals:
            item["encrypted_content"] = seal(text)
        return item

    def end(self, status: str) -> Item:
        item = self.snapshot(status)
        [part] = item[self.kind.member]
        members: dict[str, object] = {**self._place, "text": part["text"]}
        if self.kind is _MESSAGE:
            members["logprobs"] = part["logprobs"]
        self._emit(f"{self.kind.text_event}.done", members)
        self._emit(f"{self.kind.part_event}.done", {**self._place, "part": part})
        index = self._place["output_index"]
        self._emit("output_item.done", {"output_index": index, "item": item})
        return item


class _OpenCall:
    def __init__(self, target: ToolTarget, index: int, form: OutputForm, emit: Emit) -> None:
        self._emit = emit
        self._kind = _CUSTOM if target.is_custom else _FUNCTION
        self._texts: list[str] = []
        self._item = {
            "id": form.new_id(self._kind.prefix),
            "type": self._kind.type,
            "status": "in_progress",
            "call_id": form.new_call_id(),
            "name": target.name,
            self._kind.member: "",
        }
        if target.namespace is not None:
            self._item["namespace"] = target.namespace
        self._place = {"item_id": self._item["id"], "output_index": index}
        emit("output_item.added", {"output_index": index, "item": self._item})

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._emit(f"{self._kind.event}.delta", {**self._place, "delta": text})

    def snapshot(self, status: str) -> Item:
        return {**self._item, "status": status, self._kind.member: "".join(self._texts)}

    def end(self, status: str) -> Item:
        item = self.snapshot(status)
        text = {self._kind.member: item[self._kind.member]}
        self._emit(f"{self._kind.event}.done", {**self._place, **text})
        self._emit("output_item.done", {"output_index": self._place["output_index"], "item": item})
        return item
