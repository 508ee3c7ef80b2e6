"""Declares the place of a request in a trace, and the attributes of its span: of a generation, or
of texts that are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from fastovms.params import SamplingParams


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a request belongs in a trace that goes through several services (W3C Trace Context).

    Attributes:
        trace_id: 32 hexadecimal digits, which all its spans share.
        span_id: 16 of them, of the request's own span.
        parent_id: 16 of them, of the caller's span; "" = the trace begins here.
        is_sampled: whether the caller records the trace.
        state: the caller's `tracestate`.
        is_recorded: whether the request's span is recorded here.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    is_sampled: bool = False
    state: str = ""
    is_recorded: bool = False

    @property
    def response(self) -> str:
        """Returns the value of `traceresponse`."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_recorded):02x}"


class GenerationKind(Enum):
    """The operation of a request, by OpenTelemetry's names, which has none for the last two."""

    CHAT = "chat"
    TEXT_COMPLETION = "text_completion"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"


class EncodingFormat(NamedTuple):
    """The form of the requested vectors; None = not given.

    Attributes:
        dimensions: how many numbers of each.
        name: how they are written.
    """

    dimensions: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """The facts about a generation, or about the encoding of texts, before it begins.

    Attributes:
        age: seconds since its request came.
        request_id, response_id: those in the header, and in the answer; "" = it has none.
        asked_model, model: as the client calls it, and as the answer does.
        params: those of each prompt; None = nothing is generated.
        is_streamed: whether the answer is a stream.
        conversation_id: the conversation that it goes on with, if any.
        trace: what its request says; None = nothing.
        form: how vectors are asked for; None = none are made.
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
    """A part of a generation: "queue", "prefill" or "decode". Texts that are encoded have no last
    one.

    Attributes:
        age: how many seconds ago it began.
    """

    name: str
    age: float


class GenerationEnd(NamedTuple):
    """The record of a generation, or of the encoding of texts, that has ended.

    Attributes:
        finish_reasons: one for each sample; "abort" if the client has disconnected.
        num_cached_tokens, num_generated_tokens: None = nothing was to be generated.
        phases: those that its first sample has come to.
        error: the class of what made it fail, and what that says; None = it did not fail.
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
        """Records it. To be called once, when all is over."""


class Tracer(Protocol):
    """Records spans. Its methods are called on the event loop, and return at once."""

    def begin(self, start: GenerationStart) -> GenerationSpan | None:
        """Returns the span of a request; None where it is not sampled."""
