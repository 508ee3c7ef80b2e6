"""Writes answers in Ollama's form: one JSON object, or one a line while the text is generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.ollama.timestamps import nanoseconds, timestamp
from fastovms.api.request.tokens.logprob_formats import chat_logprobs
from fastovms.api.request.tokens.token_report import TokenReport
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import last_frames
from fastovms.json_lines import on_one_line
from fastovms.params import FinishReason
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)

JSON_LINES: Final = "application/x-ndjson"

_MARK: Final = "\0"
"""Stands for the text in a line of which the rest is made once."""

Members = dict[str, Any]


@dataclass(slots=True)
class Told:
    """What a part of an answer tells: a text, thoughts, and calls, each of them whole."""

    content: str = ""
    thinking: str = ""
    calls: list[Members] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether there is no more than a text."""
        return not self.thinking and not self.calls


class AnswerCollector:
    """Makes of the pieces of one answer, as they come, what its parts tell.

    Args:
        new_call_id: makes the ids of calls.
    """

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._num_calls = 0
        self._name = ""
        self._arguments: list[str] = []

    def take(self, delta: SampleDelta) -> Told:
        """Returns what a delta brings. A call that is cut is left out: no agent could run it."""
        told = Told(delta.text)
        for piece in delta.pieces:
            self._add(piece, told)
        return told

    def _add(self, piece: Piece, told: Told) -> None:
        match piece:
            case Content(text=text):
                told.content += text
            case Reasoning(text=text):
                told.thinking += text
            case CallBegin(name=name):
                self._name, self._arguments = name, []
            case CallArguments(text=text):
                self._arguments.append(text)
            case CallEnd(complete=True):
                told.calls.append(self._call())

    def _call(self) -> Members:
        arguments = orjson.loads("".join(self._arguments) or "{}")
        function = {"index": self._num_calls, "name": self._name, "arguments": arguments}
        self._num_calls += 1
        return {"id": self._new_call_id(), "function": function}


def chat_members(told: Told) -> Members:
    """Returns what a part of an answer to `/api/chat` tells."""
    message: Members = {"role": "assistant", "content": told.content}
    if told.thinking:
        message["thinking"] = told.thinking
    if told.calls:
        message["tool_calls"] = told.calls
    return {"message": message}


def generate_members(told: Told) -> Members:
    """Returns what a part of an answer to `/api/generate` tells, which has no tools."""
    members: Members = {"response": told.content}
    if told.thinking:
        members["thinking"] = told.thinking
    return members


def part_head(model: str, clock: Callable[[], float]) -> Members:
    """Returns what every part of an answer begins with."""
    return {"model": model, "created_at": timestamp(clock())}


@dataclass(frozen=True, slots=True)
class OllamaAnswer:
    """How one answer is told.

    Attributes:
        model: its name, as the client knows it.
        clock: tells the Unix time, which each part has.
        members: makes the members that tell of a part: those of a chat, or of a prompt's answer.
        collector: reads the pieces.
        report: says what is told of tokens.
        usage: returns what the answer has cost so far.
        total_time: returns for how many seconds the request has been there.
        load_time: for how many of those it waited for its model.
        context: returns the tokens of the prompt and the answer, when that is over; None = they are
            not told.
    """

    model: str
    clock: Callable[[], float]
    members: Callable[[Told], Members]
    collector: AnswerCollector
    report: TokenReport
    usage: Callable[[], Usage]
    total_time: Callable[[], float]
    load_time: float
    context: Callable[[], Sequence[int]] | None

    def whole(self, sample: SampleDelta) -> bytes:
        """Returns the answer in one object. `sample` holds all of the text."""
        told = self.members(self.collector.take(sample))
        body = {**self.head, **told, **self._end(sample.finish_reason), **self.logprobs(sample)}
        return orjson.dumps(body)

    def last_line(self, reason: FinishReason | None) -> bytes:
        """Returns the object that ends a stream."""
        return self._line({**self.head, **self.members(Told()), **self._end(reason)})

    def line(self, told: Told, sample: SampleDelta) -> bytes:
        """Returns the object of a part of a stream."""
        part = {**self.head, **self.members(told), "done": False, **self.logprobs(sample)}
        return self._line(part)

    @property
    def head(self) -> Members:
        return part_head(self.model, self.clock)

    def logprobs(self, sample: SampleDelta) -> Members:
        """Returns the log probabilities of a part's tokens, where they are to be told."""
        num_top = self.report.num_logprobs
        if num_top is None or not sample.tokens:
            return {}
        return {"logprobs": chat_logprobs(sample.tokens, num_top, self.report.names)}

    @staticmethod
    def _line(members: Members) -> bytes:
        return on_one_line(orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE))

    def _end(self, reason: FinishReason | None) -> Members:
        """Returns the members by which the last object differs. Times are nanoseconds."""
        usage = self.usage()
        timings = usage.timings
        end: Members = {
            "done": True,
            "done_reason": (reason or FinishReason.STOP).value,
            "total_duration": nanoseconds(self.total_time()),
            "load_duration": nanoseconds(self.load_time),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": 0 if timings is None else nanoseconds(timings.prefill),
            "eval_count": usage.completion_tokens,
            "eval_duration": 0 if timings is None else nanoseconds(timings.decode),
        }
        if self.context is not None:
            end["context"] = list(self.context())
        return end


class AnswerLines:
    """Encodes one stream (`delta_stream.Frames`). A piece of text costs its own encoding alone,
    unless there is more to tell."""

    def __init__(self, form: OllamaAnswer, dialect: Dialect) -> None:
        self._form = form
        self._dialect = dialect
        self._reason: FinishReason | None = None
        # The end of a name in the head cannot be taken for this: it has quotes around it.
        line = replace(form, clock=lambda: 0.0).line(Told(_MARK), SampleDelta(0, ""))
        before, _, self._after = line.rpartition(orjson.dumps(_MARK))
        self._begin, _, self._middle = before.rpartition(orjson.dumps(timestamp(0.0)))

    def delta(self, delta: SampleDelta) -> bytes:
        self._reason = delta.finish_reason
        told = self._form.collector.take(delta)
        tells_tokens = bool(delta.tokens) and self._form.report.num_logprobs is not None
        if not told.is_plain or tells_tokens:
            return self._form.line(told, delta)
        if not told.content:
            return b""
        now = timestamp(self._form.clock()).encode()
        content = on_one_line(orjson.dumps(told.content))
        return b'%b"%b"%b%b%b' % (self._begin, now, self._middle, content, self._after)

    def opening_length(self, choice: int) -> int:
        return 0

    def end(self) -> bytes:
        return self._form.last_line(self._reason)

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._dialect)
