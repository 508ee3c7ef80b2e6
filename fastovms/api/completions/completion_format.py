"""Writes the answers of `/completions` as JSON: one body, or frames of a stream, whose constant
parts are made only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import orjson

from fastovms.api.completions.echo import Echo
from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.generation.envelope import Envelope, usage_body
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.request.logprob_formats import LogprobArrays, logprob_arrays, prompt_logprobs_body
from fastovms.api.request.token_report import TokenReport
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import error_body
from fastovms.api.wire.request_schemas import StreamOptions
from fastovms.api.wire.sse_frames import DONE, END, START, frame
from fastovms.params import TokenLogprobs


class CompletionPromptReport(NamedTuple):
    """What the choices of one prompt tell about it."""

    echo: Echo
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]


def _echoed(echo: Echo, report: TokenReport) -> LogprobArrays | None:
    if report.num_logprobs is None:
        return None
    return logprob_arrays(echo.tokens, report.num_logprobs, report.names)


def _generated(delta: SampleDelta, echo: Echo, report: TokenReport) -> LogprobArrays | None:
    if report.num_logprobs is None:
        return None
    return logprob_arrays(delta.tokens, report.num_logprobs, report.names, start=echo.length)


def completion_body(
    envelope: Envelope,
    samples: Sequence[SampleDelta],
    prompts: Sequence[CompletionPromptReport],
    report: TokenReport,
    usage: Usage,
) -> dict[str, object]:
    """Returns the unary answer. `samples` hold the whole texts, in order, equally many for each
    prompt."""
    n = len(samples) // len(prompts)
    choices: list[dict[str, object]] = []
    for position, prompt in enumerate(prompts):
        prompt_members = _prompt_members(prompt, report)
        echoed = _echoed(prompt.echo, report)
        for sample in samples[position * n : position * n + n]:
            choice = _choice(sample, prompt.echo, echoed, report, envelope.dialect)
            choices.append({"index": len(choices), **choice, **prompt_members})
    return {
        **envelope.members("text_completion"),
        "choices": choices,
        "usage": usage_body(usage),
    }


def _prompt_members(prompt: CompletionPromptReport, report: TokenReport) -> dict[str, object]:
    members: dict[str, object] = {}
    if report.num_prompt_logprobs is not None:
        members["prompt_logprobs"] = prompt_logprobs_body(
            prompt.logprobs, report.num_prompt_logprobs, report.names
        )
    if report.has_token_ids:
        members["prompt_token_ids"] = list(prompt.token_ids)
    return members


def _choice(
    sample: SampleDelta,
    echo: Echo,
    echoed: LogprobArrays | None,
    report: TokenReport,
    dialect: Dialect,
) -> dict[str, object]:
    logprobs = _generated(sample, echo, report)
    if logprobs is not None and echoed is not None:
        logprobs = echoed.followed_by(logprobs)
    choice: dict[str, object] = {
        "text": echo.text + sample.text,
        "logprobs": logprobs,
        "finish_reason": None if sample.finish_reason is None else sample.finish_reason.value,
    }
    if dialect.has_ids:
        choice["stop_reason"] = sample.stop_reason
    if report.has_token_ids:
        choice["token_ids"] = [token.token_id for token in sample.tokens]
    return choice


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
    echoed = _echoed(prompt.echo, report)
    members = _prompt_members(prompt, report)
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
        self._generation = generation
        self._include_usage = options.include_usage
        self._continuous = options.include_usage and options.continuous_usage_stats
        self._report = report
        self._openings = openings
        # The choices whose opening has not been written yet.
        self._unopened = [opening.length > 0 for opening in openings]
        self._is_plain = not report.needs_tokens and not self._continuous
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
        usage = self._generation.usage_of(choice) if self._continuous else None
        logprobs = self._logprobs(delta, opening)
        return head + orjson.dumps(text) + self._rest(delta, logprobs, members, usage)

    def opening_length(self, choice: int) -> int:
        return self._openings[choice].length if self._unopened[choice] else 0

    def end(self) -> bytes:
        if not self._include_usage:
            return DONE
        usage = orjson.dumps(usage_body(self._generation.usage))
        return self._head + b'],"usage":' + usage + b"}" + END + DONE

    def failure(self, error: Exception) -> bytes:
        return frame(error_body(error, self._dialect)) + DONE

    def _logprobs(self, delta: SampleDelta, opening: ChoiceOpening | None) -> bytes:
        arrays = _generated(delta, self._openings[delta.choice].echo, self._report)
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
        self, delta: SampleDelta, logprobs: bytes, members: bytes, usage: Usage | None
    ) -> bytes:
        """Returns what follows the text in a frame."""
        reason = None if delta.finish_reason is None else delta.finish_reason.value
        tail = b',"logprobs":' + logprobs + b',"finish_reason":' + orjson.dumps(reason)
        if self._dialect.has_ids:
            tail += b',"stop_reason":' + orjson.dumps(delta.stop_reason)
        tail += members + b"}]"
        if self._include_usage:
            tail += b',"usage":' + orjson.dumps(None if usage is None else usage_body(usage))
        return tail + b"}" + END
