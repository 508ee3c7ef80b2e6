"""Writes answers: as one JSON body, or as a stream of server-sent events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

import msgspec
from msgspec import UNSET, UnsetType

from fastovms import __version__
from fastovms.api import offload
from fastovms.api.dialect import END, AnswerSchema, Dialect, log_fields_of
from fastovms.api.endpoint import warning_headers
from fastovms.api.fields import TokenReport, is_streamed, num_values
from fastovms.api.generate import (
    DeltaCallback,
    SampleDelta,
    TextGeneration,
    Usage,
    merged,
)
from fastovms.api.prepare import ModelInput
from fastovms.api.request_schemas import StreamOptions
from fastovms.errors import FastovmsError
from fastovms.http.messages import EVENT_STREAM, HeaderPairs, Request, Response, Stream
from fastovms.params import FinishReason, ModelInfo
from fastovms.telemetry.metrics import SampleTimings
from fastovms.text.scanning import Content, Piece, Reasoning

Run = Callable[[DeltaCallback], Awaitable[None]]
"""Runs a generation, and calls the callback with every delta."""


async def collect(run: Run, num_samples: int) -> list[list[SampleDelta]]:
    """Runs a generation to its end and returns the deltas of each sample."""
    deltas: list[list[SampleDelta]] = [[] for _ in range(num_samples)]
    await run(lambda delta: deltas[delta.choice].append(delta))
    return deltas


def format_cost(
    deltas: Sequence[Sequence[SampleDelta]], report: TokenReport, model: ModelInfo
) -> int:
    """Returns the number of token details to format: the cost of the work, for `offload`."""
    num_tokens = sum(len(delta.tokens) for parts in deltas for delta in parts)
    if report.num_logprobs is not None:
        num_tokens *= num_values(report.num_logprobs, model)
    return max(num_tokens, sum(map(len, deltas)))


class ShownPieces(NamedTuple):
    """Selects the pieces of an answer that the client receives.

    Attributes:
        hides_reasoning: whether reasoning is left out.
        hides_content: whether content is left out. If tool calls are required, content can only be
            malformed calls.
        one_call: whether calls after the first are left out.
    """

    hides_reasoning: bool = False
    hides_content: bool = False
    one_call: bool = False

    def shows(self, piece: Piece) -> bool:
        """Returns whether the client receives a piece."""
        match piece:
            case Content():
                return not self.hides_content
            case Reasoning():
                return not self.hides_reasoning
            case _:
                return not (self.one_call and piece.call_index)


@dataclass(frozen=True, slots=True)
class AnswerWriter:
    """The functions by which an endpoint encodes the answer to one request.

    Attributes:
        whole: encodes the whole answer, given the merged deltas of each sample.
        frames: creates the encoder of the stream's events.
        prompt_cost: the number of prompt details in a whole answer.
        handshake: whether a stream sends the first delta even if it has no text.
        content_type: the media type of a stream.
        stream_headers: further header fields of a stream.
    """

    whole: Callable[[Sequence[SampleDelta]], bytes]
    frames: Callable[[], Frames]
    prompt_cost: int = 0
    handshake: bool = True
    content_type: str = EVENT_STREAM
    stream_headers: HeaderPairs = ()


async def write_answer(
    request: Request,
    given: ModelInput[Any],
    generation: TextGeneration,
    writer: AnswerWriter,
    run: Run | None = None,
) -> Response | None:
    """Runs a generation and answers the request: as a stream (returns None) or as one body, which
    is encoded in a thread if it is large. Raises the errors of `run`; once a stream has begun, it
    ends with an error event instead. `run` runs the generation; None = `generation.run`."""
    run = run or generation.run
    headers = warning_headers(given.warnings, request)
    if is_streamed(given.asked.body):
        frames = writer.frames()
        stream = request.stream(
            content_type=writer.content_type, headers=(*headers, *writer.stream_headers)
        )
        sent = DeltaStream(
            stream,
            frames,
            num_samples=generation.num_samples,
            handshake=writer.handshake,
            max_pending_chars=given.asked.config.max_pending_chars,
        )
        await _run_stream(request, stream, sent, run)
        return None
    deltas = await collect(run, generation.num_samples)

    def encode() -> bytes:
        return writer.whole([merged(parts) for parts in deltas])

    cost = format_cost(deltas, given.report, given.asked.model.info)
    data = await offload.run(encode, cost + writer.prompt_cost)
    return Response(200, data, headers=headers)


async def _run_stream(request: Request, stream: Stream, deltas: DeltaStream, run: Run) -> None:
    try:
        await run(deltas.push)
    except ClientTooSlow:
        return
    except Exception as error:
        if not stream.started:
            raise
        request.log_fields.update(log_fields_of(error))
        deltas.fail(error)


SYSTEM_FINGERPRINT: Final = f"fastovms-{__version__}"
"""The `system_fingerprint` of all answers. It does not depend on the model's precision."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that are the same in every part of one answer."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    dialect: Dialect

    def members(self, kind: str) -> dict[str, Any]:
        """Returns the fields before `choices`; `kind` is the value of `object`."""
        members: dict[str, Any] = {"object": kind, "created": self.created, "model": self.model}
        if not self.dialect.has_ids:
            return members
        return {"id": self.id, **members, "system_fingerprint": self.system_fingerprint}


class AnswerPart(AnswerSchema, kw_only=True):
    """The fields of an `Envelope` in an answer or a frame."""

    id: str | UnsetType = UNSET
    object: str
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET


FinishWord = Literal[
    "stop", "length", "tool_calls", "function_call", "content_filter", "repetition"
]


def has_called(are_whole: Sequence[bool]) -> bool:
    """Returns whether an answer calls tools; `are_whole` is whether each call is complete. Agents
    must not run a call that a stop string has cut, which a stream cannot retract."""
    return bool(are_whole) and all(are_whole)


def finish_word(
    reason: FinishReason, are_whole: Sequence[bool] = (), called: FinishWord = "tool_calls"
) -> FinishWord:
    """Returns the `finish_reason` of a sample that has not failed.

    Args:
        are_whole: see `has_called`.
        called: the reason for a sample that calls tools.
    """
    if reason is FinishReason.STOP and has_called(are_whole):
        return called
    return cast(FinishWord, reason.value)


class CachedTokens(AnswerSchema, kw_only=True):
    """How many of the prompt's tokens were cached."""

    cached_tokens: int


class ReasoningTokens(AnswerSchema, kw_only=True):
    """How many of the answer's tokens are reasoning."""

    reasoning_tokens: int


class TokenUsage(AnswerSchema, kw_only=True):
    """The token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens | UnsetType = UNSET


class RequestMetrics(AnswerSchema, kw_only=True):
    """The durations of an answer, in vLLM's format; present with `--enable-per-request-metrics`, or
    if a response's `include` asks for them. `accepted_draft_tokens` is the number of the answer's
    tokens that were drafted."""

    time_to_first_token_ms: float
    generation_time_ms: float
    queue_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float | None
    accepted_draft_tokens: int


def usage_body(usage: Usage) -> TokenUsage:
    """Returns the `usage` object of an answer."""
    reasoning = usage.reasoning_tokens
    return TokenUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens),
        completion_tokens_details=UNSET
        if reasoning is None
        else ReasoningTokens(reasoning_tokens=reasoning),
    )


def closing_members(usage: Usage) -> dict[str, Any]:
    """Returns the fields about a request's cost, which follow the last token."""
    return {"usage": usage_body(usage), **metrics_member(usage.timings)}


def metrics_member(timings: SampleTimings | None) -> dict[str, RequestMetrics]:
    """Returns `metrics` in vLLM's format, in milliseconds; an empty dict if the request does not
    ask for it."""
    if timings is None:
        return {}
    per_token, rate = timings.per_token, timings.tokens_per_second
    metrics = RequestMetrics(
        time_to_first_token_ms=_milliseconds(timings.prefill),
        generation_time_ms=_milliseconds(timings.decode),
        queue_time_ms=_milliseconds(timings.queue),
        mean_itl_ms=None if per_token is None else _milliseconds(per_token),
        tokens_per_second=None if rate is None else round(rate, 3),
        accepted_draft_tokens=timings.num_accepted,
    )
    return {"metrics": metrics}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


class StreamUsage:
    """Formats the token usage in the frames of one stream.

    Attributes:
        is_continuous: whether each frame has the usage of its choice so far.
    """

    def __init__(self, generation: TextGeneration, options: StreamOptions) -> None:
        self._generation = generation
        self._is_included = options.include_usage
        self.is_continuous = options.include_usage and options.continuous_usage_stats

    def member(self, choice: int | None) -> bytes:
        """Returns the `usage` field of a frame, with a comma before it: null if only the last frame
        reports usage, empty if no frame does. `choice` is the index of the frame's choice; None =
        the frame is shared by several choices."""
        if not self._is_included:
            return b""
        if choice is None or not self.is_continuous:
            return b',"usage":null'
        return b',"usage":' + msgspec.json.encode(usage_body(self._generation.usage_of(choice)))

    def last_frame(self, head: bytes) -> bytes:
        """Returns the last frame, with the usage of all choices, the durations if requested, and no
        choices; empty if the client did not ask for usage. `head` is the frame's JSON up to the
        opening bracket of its choices."""
        if not self._is_included:
            return b""
        members = msgspec.json.encode(closing_members(self._generation.usage))
        return head + b"]," + members[1:] + END


class ClientTooSlow(FastovmsError):
    """The client's unread output has exceeded the server's limit."""


class DeltaFrames(Protocol):
    """Encodes the deltas of one stream."""

    def delta(self, delta: SampleDelta) -> bytes:
        """Returns the event of a delta; empty if there is nothing to send yet."""

    def opening_length(self, choice: int) -> int:
        """Returns the number of bytes in the choice's next event before the delta's text."""


class Frames(DeltaFrames, Protocol):
    """Encodes all events of one stream."""

    def end(self) -> bytes:
        """Returns the frames after the last delta: usage and end marker."""

    def failure(self, error: Exception) -> bytes:
        """Returns the last event of a stream that fails."""


class DeltaSender:
    """Writes each delta to the stream; deltas that arrive while the client does not read are
    merged.

    Args:
        max_pending_chars: the maximum characters of text to buffer for a client that does not read.
    """

    def __init__(self, stream: Stream, frames: DeltaFrames, *, max_pending_chars: int) -> None:
        self._stream = stream
        self._frames = frames
        self._max_pending = max_pending_chars
        self._num_pending = 0
        self._held: defaultdict[int, list[SampleDelta]] = defaultdict(list)
        stream.on_writable = self._release

    def send(self, delta: SampleDelta) -> None:
        """Sends a delta, or buffers it while the client does not read. Raises ClientTooSlow if the
        buffer is full."""
        if self._held or not self._stream.writable:
            self._hold(delta)
        elif frames := self._frames.delta(delta):
            self._stream.send(frames)

    def rest(self, last: SampleDelta | None = None) -> bytes:
        """Returns the events of all buffered deltas, and of `last`, for the caller to send."""
        if last is not None:
            self._held[last.choice].append(last)
        deltas = [merged(deltas) for deltas in self._held.values()]
        self._held.clear()
        self._num_pending = 0
        return b"".join(map(self._frames.delta, deltas))

    def _hold(self, delta: SampleDelta) -> None:
        if delta.choice not in self._held:
            self._num_pending += self._frames.opening_length(delta.choice)
        self._num_pending += delta.size
        if self._num_pending > self._max_pending:
            self._held.clear()
            self._stream.abort()
            raise ClientTooSlow("the client does not read its stream")
        self._held[delta.choice].append(delta)

    def _release(self) -> None:
        if self._held and (frames := self.rest()):
            self._stream.send(frames)


class DeltaStream:
    """The stream of one request. The last delta is sent together with the closing frames."""

    def __init__(
        self,
        stream: Stream,
        frames: Frames,
        *,
        num_samples: int,
        handshake: bool,
        max_pending_chars: int,
    ) -> None:
        """
        Args:
            handshake: whether to send the first delta even when it has no text.
            max_pending_chars: characters of text to buffer for a client that does not read.
        """
        self._stream = stream
        self._frames = frames
        self._sender = DeltaSender(stream, frames, max_pending_chars=max_pending_chars)
        self._num_open = num_samples
        self._handshake = handshake

    def push(self, delta: SampleDelta) -> None:
        """Sends a delta. Raises ClientTooSlow if the buffer is full."""
        if delta.finish_reason is not None:
            self._num_open -= 1
        elif delta.is_empty and not self._handshake:
            return
        self._handshake = False
        if self._num_open == 0:
            self._stream.finish(self._sender.rest(delta) + self._frames.end())
        else:
            self._sender.send(delta)

    def fail(self, error: Exception) -> None:
        """Ends the stream with an error event."""
        self._stream.finish(self._sender.rest() + self._frames.failure(error))
