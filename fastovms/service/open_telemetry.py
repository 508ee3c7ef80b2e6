"""Records request spans with OpenTelemetry, by its conventions for generative AI, and sends them to
a collector (OTLP over HTTP).

All settings but the endpoint come from the standard variables `OTEL_*`. The module needs the extra
`otel`, and is imported only if tracing is on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from fastovms import __version__
from fastovms.params import SamplingFields, SamplingParams
from fastovms.request_fields import rows_by_name
from fastovms.telemetry.tracing import GenerationEnd, GenerationStart, TraceContext

_NAME: Final = "fastovms"
_FLUSH_TIMEOUT: Final = 2.0
"""Seconds for sending the last spans to the collector when the process ends."""

_NANOSECONDS: Final = 1_000_000_000

_OF_PARAMS: Final = {
    **{row.name: name for name, row in rows_by_name(SamplingFields, "trace").items()},
    "max_tokens": "gen_ai.request.max_tokens",
    "n": "gen_ai.request.choice.count",
}
"""The span attributes for fields of `SamplingParams` that differ from their defaults."""

_DEFAULTS: Final = SamplingParams()


class OpenTelemetryTracer:
    """Implements `Tracer`. A separate thread sends spans; spans are dropped if the collector is too
    slow.

    Args:
        exporter: receives finished spans.
        unix_time: returns Unix time in nanoseconds.
    """

    def __init__(self, exporter: SpanExporter, unix_time: Callable[[], int] = time.time_ns) -> None:
        self._unix_time = unix_time
        self._ids = _RequestIds()
        resource = Resource.create()
        ours = {SERVICE_VERSION: __version__}  # overrides the version set in the environment
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            ours[SERVICE_NAME] = _NAME
        self._provider = TracerProvider(
            resource=resource.merge(Resource(ours)),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(_NAME, __version__)

    def begin(self, start: GenerationStart) -> _RecordedSpan | None:
        trace = start.trace
        parent = None
        if trace is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if trace.is_sampled else TraceFlags.DEFAULT)
            caller = SpanContext(
                int(trace.trace_id, 16),
                int(trace.parent_id, 16),
                is_remote=True,
                trace_flags=flags,
                trace_state=TraceState.from_header([trace.state]),
            )
            parent = set_span_in_context(NonRecordingSpan(caller))
            self._ids.next_span_id = int(trace.span_id, 16)
        span = self._tracer.start_span(
            f"{start.kind.value} {start.asked_model}",
            parent,
            SpanKind.SERVER,
            dict(_request_attributes(start)),
            start_time=self._unix_time() - int(start.age * _NANOSECONDS),
        )
        self._ids.next_span_id = None
        return _RecordedSpan(span, trace, self._unix_time) if span.is_recording() else None

    def close(self) -> None:
        """Sends the remaining spans within a time limit."""
        # A collector that does not answer would otherwise delay the exit by the exporter's own
        # timeout.
        sender = threading.Thread(target=self._provider.shutdown, daemon=True)
        sender.start()
        sender.join(_FLUSH_TIMEOUT)


class _RecordedSpan:
    """Implements `GenerationSpan` with OpenTelemetry."""

    def __init__(
        self, span: Span, trace: TraceContext | None, unix_time: Callable[[], int]
    ) -> None:
        self._span = span
        self._unix_time = unix_time
        context = span.get_span_context()
        self._context = TraceContext(
            f"{context.trace_id:032x}",
            f"{context.span_id:016x}",
            parent_id="" if trace is None else trace.parent_id,
            is_sampled=trace is not None and trace.is_sampled,
            state="" if trace is None else trace.state,
            is_recorded=True,
        )

    @property
    def context(self) -> TraceContext:
        return self._context

    def end(self, end: GenerationEnd) -> None:
        span, now = self._span, self._unix_time()
        counts = {
            "gen_ai.usage.input_tokens": end.num_prompt_tokens,
            "gen_ai.usage.output_tokens": end.num_generated_tokens,
            "gen_ai.usage.cache_read.input_tokens": end.num_cached_tokens,
        }
        span.set_attributes({name: count for name, count in counts.items() if count is not None})
        if end.finish_reasons:
            span.set_attribute("gen_ai.response.finish_reasons", list(end.finish_reasons))
        for name, age in end.phases:
            span.add_event(name, timestamp=now - int(age * _NANOSECONDS))
        if end.error is not None:
            kind, message = end.error
            span.set_attribute("error.type", kind)
            span.set_status(Status(StatusCode.ERROR, message))
        span.end(now)


class _RequestIds(RandomIdGenerator):
    """An id generator that uses the span id already sent to the client.

    Attributes:
        next_span_id: the id for the next span; None = a random id.
    """

    next_span_id: int | None = None

    def generate_span_id(self) -> int:
        return self.next_span_id or super().generate_span_id()


def otlp_exporter(endpoint: str | None) -> SpanExporter:
    """Returns the exporter that sends spans to a collector.

    Args:
        endpoint: the collector's address; one without a path gets `/v1/traces`. None = from the
            environment.
    """
    if endpoint is not None and endpoint.partition("://")[2].find("/") < 0:
        endpoint += "/v1/traces"
    return OTLPSpanExporter(endpoint=endpoint)


def _request_attributes(start: GenerationStart) -> Iterator[tuple[str, AttributeValue]]:
    yield "gen_ai.operation.name", start.kind.value
    yield "gen_ai.provider.name", _NAME
    yield "gen_ai.request.model", start.asked_model
    yield "gen_ai.response.model", start.model
    if start.response_id:
        yield "gen_ai.response.id", start.response_id
    yield "gen_ai.request.id", start.request_id
    if start.is_streamed:
        yield "gen_ai.request.stream", True
    if start.conversation_id is not None:
        yield "gen_ai.conversation.id", start.conversation_id
    if start.params is not None:
        yield from _of_params(start.params)
    if start.form is not None:
        if start.form.dimensions is not None:
            yield "gen_ai.embeddings.dimension.count", start.form.dimensions
        if start.form.name is not None:
            yield "gen_ai.request.encoding_formats", [start.form.name]


def _of_params(params: SamplingParams) -> Iterator[tuple[str, AttributeValue]]:
    for field, name in _OF_PARAMS.items():
        value = getattr(params, field)
        if value != getattr(_DEFAULTS, field):
            yield name, value
    if params.stop_strings:
        yield "gen_ai.request.stop_sequences", params.stop_strings
