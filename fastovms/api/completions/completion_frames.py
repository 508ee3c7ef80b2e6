"""Writes the frames of a streamed answer of `/completions`, whose constant parts are made only
once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import orjson

from fastovms.api.completions.completion_body import (
    CompletionPromptReport,
    echoed_logprobs,
    generated_logprobs,
    prompt_members,
)
from fastovms.api.completions.echo import Echo
from fastovms.api.generation.deltas import SampleDelta
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.stream_usage import StreamUsage
from fastovms.api.request.tokens.logprob_formats import LogprobArrays
from fastovms.api.request.tokens.token_report import TokenReport
from fastovms.api.wire.bodies.request_schemas import StreamOptions
from fastovms.api.wire.error_responses import last_frames
from fastovms.api.wire.sse_frames import DONE, END, START


@dataclass(frozen=True, slots=True)
class ChoiceOpening:
    """How the choices of one prompt begin in a stream, encoded beforehand.

    Attributes:
        logprobs: the elements of each of the arrays, without brackets.
        members: further members of the choice in its first frame, with a comma before them.
    """

    echo: Echo
    logprobs: tuple[bytes, ...] | None
    members: bytes

    @property
    def length(self) -> int:
        """About how many bytes it will be."""
        return len(self.echo.text) + sum(map(len, self.logprobs or ())) + len(self.members)


def make_opening(prompt: CompletionPromptReport, report: TokenReport) -> ChoiceOpening:
    echoed = echoed_logprobs(prompt.echo, report)
    members = prompt_members(prompt, report)
    return ChoiceOpening(
        prompt.echo,
        _elements(echoed) if echoed is not None and echoed.tokens else None,
        b"," + orjson.dumps(members)[1:-1] if members else b"",
    )


def _elements(arrays: LogprobArrays) -> tuple[bytes, ...]:
    return tuple(orjson.dumps(getattr(arrays, field.name))[1:-1] for field in fields(arrays))


class CompletionFrames:
    """Encodes one stream (`delta_stream.Frames`). A delta costs the encoding of its text alone,
    unless the client wants to know more about its tokens."""

    def __init__(
        self,
        envelope: Envelope,
        generation: TextGeneration,
        options: StreamOptions,
        report: TokenReport,
        *,
        openings: Sequence[ChoiceOpening],
    ) -> None:
        """
        Args:
            openings: one for each choice.
        """
        self._dialect = envelope.dialect
        self._usage = StreamUsage(generation, options)
        self._report = report
        self._openings = openings
        # The choices whose opening has not been written yet.
        self._unopened = [opening.length > 0 for opening in openings]
        self._is_plain = not report.needs_tokens and not self._usage.is_continuous
        members = orjson.dumps(envelope.members(envelope.dialect.stream_object))
        self._head = START + members[:-1] + b',"choices":['
        self._choice_heads = [
            self._head + b'{"index":%d,"text":' % index for index in range(len(openings))
        ]
        self._tail = self._rest(SampleDelta(0, ""), b"null", b"", None)

    def delta(self, delta: SampleDelta) -> bytes:
        choice = delta.choice
        head = self._choice_heads[choice]
        if delta.finish_reason is None and not self._unopened[choice]:
            if not delta.text:
                return head + b'"","finish_reason":null}]}' + END  # OVMS's handshake
            if self._is_plain:
                return head + orjson.dumps(delta.text) + self._tail
        opening = self._openings[choice] if self._unopened[choice] else None
        self._unopened[choice] = False
        text = delta.text
        members = b""
        if self._report.has_token_ids:
            members = b',"token_ids":' + orjson.dumps([token.token_id for token in delta.tokens])
        if opening is not None:
            text = opening.echo.text + text
            members += opening.members
        logprobs = self._logprobs(delta, opening)
        return head + orjson.dumps(text) + self._rest(delta, logprobs, members, choice)

    def opening_length(self, choice: int) -> int:
        return self._openings[choice].length if self._unopened[choice] else 0

    def end(self) -> bytes:
        return self._usage.last_frame(self._head) + DONE

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._dialect)

    def _logprobs(self, delta: SampleDelta, opening: ChoiceOpening | None) -> bytes:
        arrays = generated_logprobs(delta, self._openings[delta.choice].echo, self._report)
        if arrays is None or opening is None or opening.logprobs is None:
            return orjson.dumps(arrays)
        members = []
        for field, before, after in zip(
            fields(arrays), opening.logprobs, _elements(arrays), strict=True
        ):
            elements = before + b"," + after if before and after else before or after
            members.append(b'"%s":[%s]' % (field.name.encode(), elements))
        return b"{" + b",".join(members) + b"}"

    def _rest(
        self, delta: SampleDelta, logprobs: bytes, members: bytes, choice: int | None
    ) -> bytes:
        """Returns what follows the text in a frame."""
        reason = None if delta.finish_reason is None else delta.finish_reason.value
        tail = b',"logprobs":' + logprobs + b',"finish_reason":' + orjson.dumps(reason)
        if self._dialect.has_ids:
            tail += b',"stop_reason":' + orjson.dumps(delta.stop_reason)
        return tail + members + b"}]" + self._usage.member(choice) + b"}" + END
