"""Writes the answers of `/chat/completions` as JSON: one body, or frames of a stream, whose
constant parts are made only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from fastovms.api.chat.call_forms import Call, CallForms
from fastovms.api.conversation.tool_targets import ToolTarget
from fastovms.api.generation.alignment import ContentTokens
from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.generation.envelope import Envelope, usage_body
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.request.logprob_formats import chat_logprobs, prompt_logprobs_body
from fastovms.api.request.token_report import TokenReport
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import error_body
from fastovms.api.wire.request_schemas import StreamOptions
from fastovms.api.wire.sse_frames import DONE, END, START, frame
from fastovms.params import FinishReason, TokenLogprobs
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)
from fastovms.text.tokens.tracking import TextToken

_CHUNK = "chat.completion.chunk"
_UNFINISHED = b',"logprobs":null,"finish_reason":null'


@dataclass(frozen=True, slots=True)
class ChatMessageForm:
    """How the pieces of an answer are told.

    Attributes:
        role: the message's.
        prefix: what its content begins with: the end of the prompt, where it is echoed.
        hides_reasoning: whether pieces of reasoning are left out.
        hides_content: whether content is left out; in an answer that must be calls, only broken
            calls are content.
        one_call: whether calls after the first are left out.
        is_named: whether the request names the function to call.
        drops_cut_call: whether, in an answer that is whole, a call that is not complete is left
            out.
        may_call: whether the answer may be calls.
        calls: how they are told.
        new_content_tokens: makes what finds the tokens of one sample's content.
    """

    role: str
    prefix: str
    hides_reasoning: bool
    hides_content: bool
    one_call: bool
    is_named: bool
    drops_cut_call: bool
    may_call: bool
    calls: CallForms
    new_content_tokens: Callable[[], ContentTokens]

    def shows(self, piece: Piece) -> bool:
        """Returns whether the client gets a piece."""
        match piece:
            case Content():
                return not self.hides_content
            case Reasoning():
                return not self.hides_reasoning
            case _:
                return not (self.one_call and piece.call_index)

    def finish_reason(
        self, reason: FinishReason, are_whole: Sequence[bool], dialect: Dialect
    ) -> str:
        """Returns the `finish_reason` of a choice.

        Args:
            are_whole: whether each call is. Where a stop string has cut one, agents must not be
                asked to run it, and a stream cannot take back what it has told of it.
        """
        is_plain_stop = self.is_named and dialect.ends_named_call_with_stop
        has_called = bool(are_whole) and all(are_whole)
        if reason is FinishReason.STOP and has_called and not is_plain_stop:
            return self.calls.finish_reason
        return reason.value


@dataclass(frozen=True, slots=True)
class ChatPromptReport:
    """What an answer tells about its prompt; None = nothing."""

    logprobs: Sequence[TokenLogprobs | None] | None = None
    token_ids: Sequence[int] | None = None
    text: str | None = None

    def members(self, report: TokenReport) -> dict[str, object]:
        members: dict[str, object] = {}
        if self.logprobs is not None and report.num_prompt_logprobs is not None:
            members["prompt_logprobs"] = prompt_logprobs_body(
                self.logprobs, report.num_prompt_logprobs, report.names
            )
        if self.token_ids is not None:
            members["prompt_token_ids"] = list(self.token_ids)
        if self.text is not None:
            members["prompt_text"] = self.text
        return members


def chat_body(
    envelope: Envelope,
    samples: Sequence[SampleDelta],
    prompt: ChatPromptReport,
    form: ChatMessageForm,
    report: TokenReport,
    usage: Usage,
) -> dict[str, object]:
    """Returns the unary answer. `samples` hold the whole texts, in order."""
    dialect = envelope.dialect
    choices = []
    for index, sample in enumerate(samples):
        pieces = [piece for piece in sample.pieces if form.shows(piece)]
        choice: dict[str, object] = {
            "index": index,
            "message": _message(pieces, form, dialect),
            "logprobs": _sample_logprobs(sample, form, report),
            "finish_reason": sample.finish_reason
            and form.finish_reason(sample.finish_reason, _are_whole(pieces), dialect),
        }
        if dialect.has_ids:
            choice["stop_reason"] = sample.stop_reason
        if report.has_token_ids:
            choice["token_ids"] = [token.token_id for token in sample.tokens]
        choices.append(choice)
    return {
        **envelope.members("chat.completion"),
        "choices": choices,
        "usage": usage_body(usage),
        **prompt.members(report),
    }


def _are_whole(pieces: Iterable[Piece]) -> list[bool]:
    """Returns, for each call that ends in the pieces, whether it is whole."""
    return [piece.complete for piece in pieces if isinstance(piece, CallEnd)]


def _message(pieces: Iterable[Piece], form: ChatMessageForm, dialect: Dialect) -> dict[str, Any]:
    """Returns the message of a choice.

    Args:
        pieces: those that the client gets.
    """
    content, reasoning = [form.prefix], []
    calls: list[Call] = []
    for piece in pieces:
        match piece:
            case Content(text=text):
                content.append(text)
            case Reasoning(text=text):
                reasoning.append(text)
            case CallBegin(name=name):
                calls.append(Call(form.calls.target(name)))
            case CallArguments(text=text):
                calls[-1].texts.append(text)
            case CallEnd(complete=is_complete):
                if not is_complete and form.drops_cut_call:
                    calls.pop()
    text = "".join(content)
    is_plain = form.is_named and not form.calls.is_legacy
    is_silent = bool(calls) and dialect.has_null_content and not is_plain
    message: dict[str, Any] = {"role": form.role, "content": text or (None if is_silent else "")}
    if dialect.has_ids:
        message["refusal"] = None
    if reasoning:
        message |= dict.fromkeys(dialect.reasoning_members, "".join(reasoning))
    if calls:
        message |= form.calls.members(calls)
    elif dialect.lists_no_calls:
        message["tool_calls"] = []
    return message


def _sample_logprobs(
    sample: SampleDelta, form: ChatMessageForm, report: TokenReport
) -> dict[str, object] | None:
    if report.num_logprobs is None:
        return None
    content = form.new_content_tokens()
    content.push(sample.parsed, sample.tokens)
    told: list[TextToken] = []
    for piece in sample.pieces:
        tokens = content.take(piece)
        if form.shows(piece):
            told += tokens
    return _logprobs([*told, *content.rest()], report)


def _logprobs(tokens: Sequence[TextToken], report: TokenReport) -> dict[str, object]:
    assert report.num_logprobs is not None
    content = chat_logprobs(tokens, report.num_logprobs, report.names)
    return {"content": content, "refusal": None}


class ChatFrames:
    """Encodes one stream (`delta_stream.Frames`). A piece of text costs its own encoding alone,
    unless the client wants to know more about its tokens."""

    def __init__(
        self,
        envelope: Envelope,
        generation: TextGeneration,
        options: StreamOptions,
        report: TokenReport,
        form: ChatMessageForm,
        prompt: ChatPromptReport,
    ) -> None:
        self._dialect = envelope.dialect
        self._generation = generation
        self._include_usage = options.include_usage
        self._continuous = options.include_usage and options.continuous_usage_stats
        self._report = report
        self._form = form
        self._is_plain = not report.needs_tokens and not self._continuous
        choices = range(generation.num_samples)
        self._are_whole: list[list[bool]] = [[] for _ in choices]
        # What the call is to that each choice tells of now.
        self._targets = [ToolTarget("") for _ in choices]
        self._untold_ids: list[list[int]] = [[] for _ in choices]
        self._content = [form.new_content_tokens() for _ in choices]
        members = orjson.dumps(envelope.members(_CHUNK))[:-1]
        self._head = START + members + b',"choices":['
        self._heads = [self._head + b'{"index":%d,"delta":' % index for index in choices]
        self._tail = self._rest(_UNFINISHED, None)
        self._opening = self._make_opening(prompt)

    def delta(self, delta: SampleDelta) -> bytes:
        opening, self._opening = self._opening, b""
        choice = delta.choice
        head = self._heads[choice]
        frames = [opening]
        if self._report.has_token_ids:
            self._untold_ids[choice] += [token.token_id for token in delta.tokens]
        content = self._content[choice] if self._report.num_logprobs is not None else None
        if content is not None:
            content.push(delta.parsed, delta.tokens)
        for piece in delta.pieces:
            tokens = () if content is None else content.take(piece)
            if not self._form.shows(piece):
                continue
            if isinstance(piece, CallEnd):
                self._are_whole[choice].append(piece.complete)
            elif self._is_plain:
                frames.append(head + self._message(choice, piece) + self._tail)
            else:
                told = self._told(choice, tokens, b"null", b"")
                frames.append(head + self._message(choice, piece) + told)
        if delta.finish_reason is not None:
            frames.append(head + b"{}" + self._end(delta, delta.finish_reason))
        return b"".join(frames)

    def opening_length(self, choice: int) -> int:
        return len(self._opening)

    def end(self) -> bytes:
        if not self._include_usage:
            return DONE
        usage = orjson.dumps(usage_body(self._generation.usage))
        return self._head + b'],"usage":' + usage + b"}" + END + DONE

    def failure(self, error: Exception) -> bytes:
        return frame(error_body(error, self._dialect)) + DONE

    def _message(
        self, choice: int, piece: Content | Reasoning | CallBegin | CallArguments
    ) -> bytes:
        """Returns the `delta` that tells of a piece."""
        match piece:
            case Content(text=text):
                return b'{"content":' + orjson.dumps(text) + b"}"
            case Reasoning(text=text):
                return orjson.dumps(dict.fromkeys(self._dialect.reasoning_members, text))
            case CallArguments(call_index=index, text=text):
                return self._form.calls.more(index, self._targets[choice], text)
            case CallBegin(call_index=index, name=name):
                self._targets[choice] = target = self._form.calls.target(name)
                return self._form.calls.beginning(index, target)

    def _told(
        self, choice: int, tokens: Sequence[TextToken], finish_reason: bytes, members: bytes
    ) -> bytes:
        """Returns what follows a piece, or ends the choice: the log probabilities of its tokens,
        and the ids of all that nothing has told of yet."""
        logprobs = orjson.dumps(_logprobs(tokens, self._report)) if tokens else b"null"
        if untold_ids := self._untold_ids[choice]:
            self._untold_ids[choice] = []
            members += b',"token_ids":' + orjson.dumps(untold_ids)
        told = b',"logprobs":' + logprobs + b',"finish_reason":' + finish_reason + members
        return self._rest(told, choice)

    def _end(self, delta: SampleDelta, reason: FinishReason) -> bytes:
        are_whole = self._are_whole[delta.choice]
        word = orjson.dumps(self._form.finish_reason(reason, are_whole, self._dialect))
        members = b""
        if self._dialect.has_ids:
            members = b',"stop_reason":' + orjson.dumps(delta.stop_reason)
        tokens = () if self._report.num_logprobs is None else self._content[delta.choice].rest()
        return self._told(delta.choice, tokens, word, members)

    def _rest(self, members: bytes, choice: int | None) -> bytes:
        """Returns what stands from the end of the choice to the end of the frame."""
        usage = None
        if self._continuous and choice is not None:
            usage = self._generation.usage_of(choice)
        return self._with_usage(members, usage)

    def _with_usage(self, members: bytes, usage: Usage | None) -> bytes:
        tail = members + b"}]"
        if self._include_usage:
            told = None if usage is None else usage_body(usage)
            tail += b',"usage":' + orjson.dumps(told)
        return tail + b"}" + END

    def _make_opening(self, prompt: ChatPromptReport) -> bytes:
        """Returns the first frames of every choice, in order: that is where clients expect the
        role. An empty text would become a part of its own in a message that only calls (AI SDK 6:
        `@ai-sdk/openai`), so that content is null where calls may come, as OpenAI has it."""
        is_text = not (self._dialect.handshake or self._form.may_call)
        message = {"role": self._form.role, "content": "" if is_text else None}
        frames = []
        for choice, head in enumerate(self._heads):
            rest = b',"finish_reason":null}]}' + END
            if not self._dialect.handshake:
                usage = self._generation.usage_of(choice) if self._continuous else None
                rest = self._with_usage(_UNFINISHED, usage)
            frames.append(head + orjson.dumps(message) + rest)
            if self._form.prefix:
                frames.append(head + orjson.dumps({"content": self._form.prefix}) + self._tail)
        if told := prompt.members(self._report):
            frames[0] = frames[0].removesuffix(b"}" + END) + b"," + orjson.dumps(told)[1:] + END
        return b"".join(frames)
