"""Builds the output of the Responses API: response objects, output items and stream events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from msgspec import to_builtins

from fastovms.api.answer import CachedTokens, ReasoningTokens, metrics_member
from fastovms.api.chat_messages import seal
from fastovms.api.chat_tools import ToolTarget
from fastovms.api.client_tools import CLIENT_TOOLS, ClientTool
from fastovms.api.dialect import AnswerSchema, Dialect, describe, frame
from fastovms.api.generate import SampleDelta, Usage
from fastovms.api.scoring import TokenAligner
from fastovms.errors import RequestError
from fastovms.params import FinishReason
from fastovms.parts.responses.input import Item, NewId
from fastovms.text.detokenizer import TextToken
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd, Content, Piece, Reasoning


@dataclass(frozen=True, slots=True)
class ResponseStatus:
    """The changing parts of a response object.

    Attributes:
        name: "queued", "in_progress", "completed", "incomplete", "failed" or "cancelled".
        completed_at: a Unix time.
        error: code and message.
        incomplete_reason: the reason why the response is incomplete.
    """

    name: str
    completed_at: int | None = None
    usage: Usage | None = None
    error: Mapping[str, str] | None = None
    incomplete_reason: str | None = None

    @property
    def is_final(self) -> bool:
        return self.name not in ("queued", "in_progress")

    @property
    def is_answer(self) -> bool:
        """Whether the status is "completed" or "incomplete"."""
        return self.name in ("completed", "incomplete")

    def members(self) -> dict[str, object]:
        """Returns the members of the response object that report the status."""
        reason = self.incomplete_reason
        return {
            "status": self.name,
            "completed_at": self.completed_at,
            "error": self.error,
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": None if self.usage is None else usage_body(self.usage),
            **to_builtins(metrics_member(None if self.usage is None else self.usage.timings)),
        }


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """The constant parts of a response object.

    Attributes:
        members: the id, the creation time and the request's fields.
        length_reason: the `incomplete_details` reason of an answer that has reached its limit.
    """

    members: Mapping[str, Any]
    length_reason: str

    @property
    def id(self) -> str:
        """The id of the response."""
        return str(self.members["id"])

    def body(self, status: ResponseStatus, output: Sequence[Item] | None) -> dict[str, object]:
        """Returns the response object.

        Args:
            output: the items; None = leave them out.
        """
        body = {**self.members, **status.members()}
        if output is not None:
            body["output"] = output
        return body

    def ended(
        self, reason: FinishReason, usage: Usage, now: float, *, has_cut_call: bool
    ) -> ResponseStatus:
        """Returns the status after the last token. Repetitive text makes the response incomplete,
        as does an incomplete tool call, such as one cut by a stop string, because agents run the
        calls of completed responses."""
        if reason is FinishReason.LENGTH:
            return ResponseStatus("incomplete", usage=usage, incomplete_reason=self.length_reason)
        if has_cut_call or reason is FinishReason.REPETITION:
            return ResponseStatus("incomplete", usage=usage, incomplete_reason=reason.value)
        return ResponseStatus("completed", completed_at=int(now), usage=usage)


def failed(message: str, code: str = "server_error", usage: Usage | None = None) -> ResponseStatus:
    """Returns the status of a failed response, with an error in OpenAI's format."""
    return ResponseStatus("failed", usage=usage, error={"code": code, "message": message})


class WrittenTokens(CachedTokens, kw_only=True):
    """The input tokens that were read from, and written to, the prefix cache."""

    cache_write_tokens: int


class ResponseUsage(AnswerSchema, kw_only=True):
    """The token counts of a response."""

    input_tokens: int
    input_tokens_details: WrittenTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


def response_usage(usage: Usage) -> ResponseUsage:
    """Returns the `usage` member of a response."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=WrittenTokens(cached_tokens=usage.cached_tokens, cache_write_tokens=0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=ReasoningTokens(reasoning_tokens=usage.reasoning_tokens or 0),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def usage_body(usage: Usage) -> dict[str, object]:
    """Returns the `usage` member of a response as a dictionary."""
    body: dict[str, object] = to_builtins(response_usage(usage))
    return body


_TERMINAL_EVENTS: Final[Mapping[str, str]] = {
    "completed": "completed",
    "incomplete": "incomplete",
    "failed": "failed",
    "cancelled": "incomplete",
}
"""The last event of a stream by status. OpenAI's API has no event of its own for cancelled
responses."""


class EventEncoder:
    """Encodes events as frames and collects the frames.

    Args:
        named: whether frames have `event:` lines.
        first: the number of the first event.
    """

    def __init__(self, *, named: bool, first: int = 0) -> None:
        self._named = named
        self._frames: list[bytes] = []
        self._next_number = first

    def emit(self, kind: str, members: Mapping[str, object]) -> None:
        """Adds an event. `kind` is the event's type without the prefix "response."."""
        name = kind if kind == "error" else f"response.{kind}"
        event = {"type": name, "sequence_number": self._next_number, **members}
        self._next_number += 1
        self._frames.append(frame(orjson.dumps(event), name if self._named else ""))

    def skip(self, num_events: int) -> None:
        """Drops the frames before number `num_events`, and numbers new frames from there on.
        Another version of the server may have sent more events for the same output."""
        first = self._next_number - len(self._frames)
        del self._frames[: max(0, num_events - first)]
        self._next_number = max(self._next_number, num_events)

    def take(self) -> list[bytes]:
        """Returns the frames since the last call, one per event."""
        frames, self._frames = self._frames, []
        return frames


class ResponseRun:
    """The progress of one response: its output, its status, and the events that report both.

    Attributes:
        status: the current status.
        output: the builder of the output items.
        dialect: the dialect of the events.
    """

    def __init__(
        self,
        form: ResponseForm,
        output_form: OutputForm,
        dialect: Dialect,
        *,
        usage: Callable[[], Usage],
        unix_time: Callable[[], float],
        makes_events: bool = True,
        for_all: bool = False,
        prewarms: bool = False,
    ) -> None:
        """Args:
        usage: returns the token usage so far.
        makes_events: whether events are made.
        prewarms: whether only the prompt is computed. The one token that this generates is
            dropped.
        for_all: whether clients of every dialect may read the events, which then have `event:`
            lines.
        """
        self.form = form
        self.status = ResponseStatus("in_progress")
        self.dialect = dialect
        self._usage = usage
        self._unix_time = unix_time
        self._events = EventEncoder(named=for_all or dialect.responses.names_events)
        self._output_form = output_form
        self._emit = self._events.emit if makes_events else _emit_nothing
        self._prewarms = prewarms
        self._has_started = False
        self.output = OutputBuilder(output_form, self._emit)

    def queue(self) -> None:
        """Makes the first events of a response that waits for its model."""
        self.status = ResponseStatus("queued")
        self._emit_state("created")
        self._emit_state("queued")

    def adopt(self, other: ResponseRun) -> None:
        """Takes the form and the options from another run of the same response. That run was made
        once the model was loaded, and has no events."""
        self.form, self._usage, self._output_form = other.form, other._usage, other._output_form
        self.output = OutputBuilder(self._output_form, self._emit)

    def start(self) -> None:
        """Records that the response no longer waits, or never had to. Idempotent."""
        if self._has_started:
            return
        self._has_started = True
        if self.status.name != "queued":
            self._emit_state("created")
        self.status = ResponseStatus("in_progress")
        self._emit_state("in_progress")
        self.output.begin()

    def push(self, delta: SampleDelta) -> None:
        """Adds a delta of the model, and makes the events for it."""
        if self._prewarms:
            self.output.begin()
            if delta.finish_reason is not None:
                usage = self._usage()._replace(completion_tokens=0, reasoning_tokens=None)
                self.status = ResponseStatus("completed", int(self._unix_time()), usage)
            return
        self.output.push(delta.pieces, delta.parsed, delta.tokens)
        if delta.finish_reason is not None:
            ended = self.form.ended(
                delta.finish_reason,
                self._usage(),
                self._unix_time(),
                has_cut_call=self.output.has_cut_call,
            )
            self.output.finish(ended.name)
            if self.status.name != "incomplete":  # keep the status incomplete of another sample
                self.status = ended

    def cancel(self) -> None:
        """Ends the open item and sets the status to cancelled."""
        self.output.end_item("incomplete")
        self.status = ResponseStatus("cancelled", usage=self._usage())

    def fail(self, error: Exception) -> None:
        """Ends the open item and sets the status to failed, with the error."""
        message, param, code = describe(error)
        self.output.end_item("incomplete")
        if self.dialect.responses.has_error_events:
            self._events.emit("error", {"code": code, "message": message, "param": param})
        kind = "invalid_prompt" if isinstance(error, RequestError) else "server_error"
        self.status = failed(message, kind)

    def end(self) -> None:
        """Makes the last event. The status must be final."""
        self._emit_state(_TERMINAL_EVENTS[self.status.name])

    def note_not_kept(self) -> None:
        """Records that the response could not be stored."""
        self.form = replace(self.form, members={**self.form.members, "store": False})

    def body(self) -> dict[str, object]:
        """Returns the current response object."""
        return self.form.body(self.status, self.output.snapshot())

    def skip_events(self, num_events: int) -> None:
        """Records that another process has already sent the first `num_events` events."""
        self._events.skip(num_events)

    def take_events(self) -> list[bytes]:
        """Returns the frames since the last call, one per event."""
        return self._events.take()

    def _emit_state(self, kind: str) -> None:
        self._events.emit(kind, {"response": self.body()})


def interrupted_events(response: Mapping[str, Any], start: int, dialect: Dialect) -> list[bytes]:
    """Returns the last events of a background response that no replica resumes, for a client that
    has the events before number `start`. `response` is the failed or cancelled response object."""
    encoder = EventEncoder(named=True, first=start)
    if not start:
        encoder.emit("created", {"response": {**response, **ResponseStatus("queued").members()}})
    if response["status"] == "failed" and dialect.responses.has_error_events:
        encoder.emit("error", {**response["error"], "param": None})
    encoder.emit(_TERMINAL_EVENTS[response["status"]], {"response": response})
    return encoder.take()


def _emit_nothing(kind: str, members: Mapping[str, object]) -> None:
    pass


Emit = Callable[[str, Mapping[str, object]], None]
"""Receives an event: its type without the prefix "response.", and its other members."""

EncodeLogprobs = Callable[[Sequence[TextToken]], list[bytes]]
"""Returns the log probabilities of tokens as JSON texts, one per token."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The options for converting an answer to items.

    Attributes:
        new_id, new_call_id: return new ids of items and of calls.
        summarizes_reasoning: whether reasoning is sent as a summary, as in OVMS; otherwise as text.
        seals_reasoning: whether reasoning is also sent in `encrypted_content`.
        max_calls: further tool calls are left out; None = no limit.
        target: returns the client's tool for a function name written by the model.
        hides_content: whether text is left out; see `answer.ShownPieces`.
        aligner: finds the tokens of the text; None = log probabilities are not reported.
        encode_logprobs: encodes log probabilities.
        max_logprobs_length: the maximum bytes of log probabilities in events that repeat a whole
            text; larger ones are left out.
        first: an item that precedes the items of the answer; None = no such item.
    """

    new_id: NewId
    new_call_id: Callable[[], str]
    target: Callable[[str], ToolTarget] = ToolTarget
    summarizes_reasoning: bool = False
    seals_reasoning: bool = False
    max_calls: int | None = None
    hides_content: bool = False
    aligner: TokenAligner | None = None
    encode_logprobs: EncodeLogprobs | None = None
    max_logprobs_length: int | None = None
    first: Item | None = None


@dataclass(frozen=True, slots=True)
class _TextKind:
    """The names of the events and members of an item with a single text part.

    Attributes:
        member: the item's member that has the part.
        index: the name of the part's index.
        part_event, text_event: the prefixes of event types, followed by `.added`, `.delta` or
            `.done`.
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
    """The names of the events and members of a tool call item.

    Attributes:
        event: the prefix of the event types for arguments or input, followed by `.delta` or
            `.done`.
    """

    prefix: str
    type: str
    event: str


_FUNCTION: Final = _CallKind("fc", "function_call", "function_call_arguments")
_CUSTOM: Final = _CallKind("ctc", "custom_tool_call", "custom_tool_call_input")


class OutputBuilder:
    """Builds the output of one response.

    Items are built one at a time: an open item is ended before the next one is added, so that
    events nest and `output_index` never decreases. A complete call stays open until something
    follows it: if the answer is cut after the call, the call is the incomplete item.

    Attributes:
        items: the ended items.
        has_cut_call: whether the unfinished sample contains an incomplete tool call.
    """

    def __init__(self, form: OutputForm, emit: Emit) -> None:
        self._form = form
        self._emit = emit
        self._open: _OpenText | _OpenCall | _OpenClientCall | None = None
        self._skips_call = False
        self._num_earlier = 0
        self.items: list[Item] = []
        self.has_cut_call = False

    def begin(self) -> None:
        """Adds the item that precedes the answer, if there is one. Idempotent."""
        first = self._form.first
        if first is not None and not self._num_earlier:
            self._num_earlier = 1
            self.items.append(first)
            for event in ("added", "done"):
                self._emit(f"output_item.{event}", {"output_index": 0, "item": first})

    def push(
        self, pieces: Iterable[Piece], text: str = "", tokens: Sequence[TextToken] = ()
    ) -> None:
        """Adds parsed pieces of the answer.

        Args:
            text: the raw text that was parsed; it may arrive before its pieces.
            tokens: the tokens that begin in `text`, with offsets in characters.
        """
        self.begin()
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
                    if (call := self._open_call()) and not self._skips_call:
                        call.add(text)
                case CallEnd(complete=is_complete, position=position):
                    if aligner is not None:
                        aligner.skip_to(position)
                    if isinstance(self._open, _OpenClientCall):
                        is_complete = self._open.read() and is_complete
                    if not is_complete and not self._skips_call:
                        self.end_item("incomplete")
                        self.has_cut_call = True

    def finish(self, status: str) -> None:
        """Ends the answer with the given status of the open item. An empty answer gets an empty
        message."""
        if self._is_empty:
            self._text(_MESSAGE)
        self.end_item(status, "final_answer" if status == "completed" else None)
        self.has_cut_call = False

    def end_item(self, status: str, phase: str | None = None) -> None:
        """Ends the open item.

        Args:
            phase: the `phase` of a message: "commentary" if more of the answer follows, or
                "final_answer"; None = unknown.
        """
        if self._open is not None:
            opened, self._open = self._open, None
            if (item := opened.end(status, phase)) is not None:
                self.items.append(item)

    def snapshot(self) -> list[Item]:
        """Returns all items, including the open one."""
        opened = None if self._open is None else self._open.snapshot("in_progress")
        return self.items + ([] if opened is None else [opened])

    @property
    def _is_empty(self) -> bool:
        return len(self.items) == self._num_earlier and self._open is None

    def _say(self, text: str) -> None:
        if not self._is_empty and not isinstance(self._open, _OpenText):
            text = text.lstrip()  # ignore white space between a call and the text after it
        if text:
            aligner = self._form.aligner
            tokens = [] if aligner is None else aligner.take(text)
            self._text(_MESSAGE).add(text, self._logprobs(tokens))

    def _text(self, kind: _TextKind) -> _OpenText:
        if isinstance(self._open, _OpenText) and self._open.kind is kind:
            return self._open
        self.end_item("completed", "commentary")
        self._open = opened = _OpenText(kind, len(self.items), self._form, self._emit)
        return opened

    def _open_call(self) -> _OpenCall | _OpenClientCall | None:
        return None if isinstance(self._open, _OpenText) else self._open

    def _begin_call(self, name: str) -> None:
        self.end_item("completed", "commentary")
        target = self._form.target(name)
        tool = CLIENT_TOOLS.get(target.kind)
        if tool is None:
            self._open = _OpenCall(target, len(self.items), self._form, self._emit)
        else:
            self._open = _OpenClientCall(tool, len(self.items), self._form, self._emit)

    def _logprobs(self, tokens: Sequence[TextToken]) -> list[bytes]:
        encode = self._form.encode_logprobs
        return [] if encode is None or not tokens else encode(tokens)


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

    def end(self, status: str, phase: str | None) -> Item:
        item = self.snapshot(status)
        if self.kind is _MESSAGE and phase is not None:
            item["phase"] = phase
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
        self._member = target.text_member
        self._texts: list[str] = []
        self._item = {
            "id": form.new_id(self._kind.prefix),
            "type": self._kind.type,
            "status": "in_progress",
            "call_id": form.new_call_id(),
            "name": target.name,
            self._member: "",
        }
        if target.namespace is not None:
            self._item["namespace"] = target.namespace
        self._place = {"item_id": self._item["id"], "output_index": index}
        emit("output_item.added", {"output_index": index, "item": self._item})

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._emit(f"{self._kind.event}.delta", {**self._place, "delta": text})

    def snapshot(self, status: str) -> Item:
        return {**self._item, "status": status, self._member: "".join(self._texts)}

    def end(self, status: str, phase: str | None) -> Item:
        item = self.snapshot(status)
        text = {self._member: item[self._member]}
        self._emit(f"{self._kind.event}.done", {**self._place, **text})
        self._emit("output_item.done", {"output_index": self._place["output_index"], "item": item})
        return item


class _OpenClientCall:
    """A call of a tool that has its own item type. The item is created when all arguments are
    known, and left out if they are malformed."""

    def __init__(self, tool: ClientTool, index: int, form: OutputForm, emit: Emit) -> None:
        self._tool = tool
        self._index = index
        self._form = form
        self._emit = emit
        self._texts: list[str] = []
        self._item: Item | None = None

    def add(self, text: str) -> None:
        self._texts.append(text)

    def read(self) -> bool:
        """Parses the arguments. Returns whether they match the tool's schema."""
        members = self._tool.members("".join(self._texts))
        if members is not None:
            ids = {"id": self._form.new_id(self._tool.prefix), "type": self._tool.call}
            call_id = self._form.new_call_id()
            self._item = {**ids, "status": "in_progress", "call_id": call_id, **members}
        return self._item is not None

    def snapshot(self, status: str) -> Item | None:
        return None if self._item is None else {**self._item, "status": status}

    def end(self, status: str, phase: str | None) -> Item | None:
        item, place = self.snapshot(status), {"output_index": self._index}
        if item is not None:
            self._emit("output_item.added", {**place, "item": self._item})
            for kind, members in self._tool.events(item):
                self._emit(kind, {**place, **members})
            self._emit("output_item.done", {**place, "item": item})
        return item
