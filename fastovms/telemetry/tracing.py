"""The trace context of a request, and the content of its span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from fastovms.params import SamplingParams


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The position of a request in a distributed trace (W3C Trace Context).

    Attributes:
        trace_id: 32 hexadecimal digits, shared by all spans of the trace.
        span_id: 16 hexadecimal digits of the request's own span.
        parent_id: 16 hexadecimal digits of the caller's span; "" = the trace begins here.
        is_sampled: whether the caller records the trace.
        state: the caller's `tracestate` header.
        is_recorded: whether this server records the request's span.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    is_sampled: bool = False
    state: str = ""
    is_recorded: bool = False

    @property
    def response(self) -> str:
        """Returns the value of the `traceresponse` header."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_recorded):02x}"


class GenerationKind(Enum):
    """The operation of a request, by OpenTelemetry's names; the last two are not defined there."""

    CHAT = "chat"
    TEXT_COMPLETION = "text_completion"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"


class EncodingFormat(NamedTuple):
    """The format of the requested embeddings; None = not given.

    Attributes:
        dimensions: the number of dimensions.
        name: the encoding of the numbers, such as "base64".
    """

    dimensions: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """The facts about a generation or embedding request before it begins.

    Attributes:
        age: seconds since the request arrived.
        request_id, response_id: the ids in the header and in the answer; "" = none.
        asked_model, model: the model's name in the request, and in the answer.
        params: the sampling parameters of each prompt; None = no generation.
        is_streamed: whether the answer is a stream.
        conversation_id: the conversation that the request continues; None = none.
        trace: the request's trace context; None = none.
        form: the requested format of embeddings; None = no embeddings.
    """

    kind: GenerationKind
    age: float
    request_id: str
    response_id: str
    asked_model: str
    model: str
    params: SamplingParams | None
    is_streamed: bool
    conversation_id: str | None = None
    trace: TraceContext | None = None
    form: EncodingFormat | None = None


class Phase(NamedTuple):
    """A phase of a request: "queue", "prefill" or "decode". Embeddings have no "decode".

    Attributes:
        age: the seconds since the phase began.
    """

    name: str
    age: float


class GenerationEnd(NamedTuple):
    """The outcome of a generation or embedding request.

    Attributes:
        finish_reasons: one for each sample; "abort" if the client has disconnected.
        num_cached_tokens, num_generated_tokens: None = no generation.
        phases: the phases that its first sample has reached.
        error: the class and message of the error; None = no error.
    """

    finish_reasons: Sequence[str]
    num_prompt_tokens: int
    num_cached_tokens: int | None
    num_generated_tokens: int | None
    phases: Sequence[Phase]
    error: tuple[str, str] | None


class GenerationSpan(Protocol):
    """The span of one request."""

    @property
    def context(self) -> TraceContext: ...

    def end(self, end: GenerationEnd) -> None:
        """Ends and records the span. Call it once."""


class Tracer(Protocol):
    """Creates the spans of requests. Its methods are called on the event loop, and do not block."""

    def begin(self, start: GenerationStart) -> GenerationSpan | None:
        """Returns the span of a request, or None if the request is not sampled."""
