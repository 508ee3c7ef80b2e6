"""Writes the frames of a streamed answer of `/chat/completions`, whose constant parts are made only
once."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from fastovms.api.chat.chat_body import ChatPromptReport, chat_logprobs_body
from fastovms.api.chat.message_form import ChatMessageForm
from fastovms.api.conversation.tool_targets import ToolTarget
from fastovms.api.generation.deltas import SampleDelta
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.stream_usage import StreamUsage
from fastovms.api.request.tokens.token_report import TokenReport
from fastovms.api.wire.bodies.request_schemas import StreamOptions
from fastovms.api.wire.error_responses import last_frames
from fastovms.api.wire.sse_frames import DONE, END, START
from fastovms.params import FinishReason
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Reasoning,
)
from fastovms.text.tokens.tracking import TextToken

_CHUNK = "chat.completion.chunk"
_UNFINISHED = b',"logprobs":null,"finish_reason":null'


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
        self._usage = StreamUsage(generation, options)
        self._report = report
        self._form = form
        self._is_plain = not report.needs_tokens and not self._usage.is_continuous
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
        return self._usage.last_frame(self._head) + DONE

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._dialect)

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
        logprobs = orjson.dumps(chat_logprobs_body(tokens, self._report)) if tokens else b"null"
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
        return members + b"}]" + self._usage.member(choice) + b"}" + END

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
                rest = self._rest(_UNFINISHED, choice)
            frames.append(head + orjson.dumps(message) + rest)
            if self._form.prefix:
                frames.append(head + orjson.dumps({"content": self._form.prefix}) + self._tail)
        if told := prompt.members(self._report):
            frames[0] = frames[0].removesuffix(b"}" + END) + b"," + orjson.dumps(told)[1:] + END
        return b"".join(frames)
