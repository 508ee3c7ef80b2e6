"""Spans as OpenTelemetry records them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fastovms import __version__
from fastovms.params import SamplingParams
from fastovms.service.open_telemetry import OpenTelemetryTracer, otlp_exporter
from fastovms.telemetry.tracing import (
    EncodingFormat,
    GenerationEnd,
    GenerationKind,
    GenerationStart,
    Phase,
    TraceContext,
)

SECOND = 1_000_000_000
TRACE = TraceContext("a" * 32, "b" * 16, "c" * 16, is_sampled=True, state="v=1")
START = GenerationStart(
    GenerationKind.CHAT,
    age=2.0,
    request_id="r-1",
    response_id="chatcmpl-1",
    asked_model="fast",
    model="m",
    params=SamplingParams(max_tokens=9, temperature=0.5, stop_strings=("x",)),
    is_streamed=True,
    conversation_id="conv_1",
    trace=TRACE,
)
END = GenerationEnd(
    ["stop"],
    num_prompt_tokens=5,
    num_cached_tokens=4,
    num_generated_tokens=3,
    phases=[Phase("queue", 1.5), Phase("prefill", 1.0), Phase("decode", 0.5)],
    error=None,
)


class Recorder:
    """A tracer, and the spans that it has sent. The time stands still."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = OpenTelemetryTracer(self.exporter, lambda: 100 * SECOND)

    def record(self, start: GenerationStart = START, end: GenerationEnd = END) -> TraceContext:
        """Begins and ends a span, and returns its context."""
        span = self.tracer.begin(start)
        assert span is not None
        span.end(end)
        return span.context

    def spans(self) -> tuple[ReadableSpan, ...]:
        self.tracer.close()
        return self.exporter.get_finished_spans()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    recorder = Recorder()
    yield recorder
    recorder.tracer.close()


def test_generation_is_one_span_with_its_phases(recorder: Recorder) -> None:
    assert recorder.record() == replace(TRACE, is_recorded=True)
    [told] = recorder.spans()
    assert (told.name, told.kind, told.status.status_code) == (
        "chat fast", SpanKind.SERVER, StatusCode.UNSET,
    )  # fmt: skip
    assert (told.start_time, told.end_time) == (98 * SECOND, 100 * SECOND)
    assert [(event.name, event.timestamp / SECOND) for event in told.events] == [
        ("queue", 98.5), ("prefill", 99.0), ("decode", 99.5),
    ]  # fmt: skip
    assert told.context is not None
    assert told.parent is not None
    assert (told.context.trace_id, told.context.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert (told.parent.span_id, told.parent.is_remote) == (int("c" * 16, 16), True)
    assert told.context.trace_state.to_header() == "v=1"
    attributes = dict(told.attributes or {})
    assert (
        attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "fastovms",
            "gen_ai.request.model": "fast",
            "gen_ai.response.model": "m",
            "gen_ai.response.id": "chatcmpl-1",
            "gen_ai.request.id": "r-1",
            "gen_ai.request.stream": True,
            "gen_ai.request.max_tokens": 9,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.stop_sequences": ("x",),
            "gen_ai.conversation.id": "conv_1",
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.usage.cache_read.input_tokens": 4,
            "gen_ai.response.finish_reasons": ("stop",),
        }.items()
    )
    assert "gen_ai.request.seed" not in attributes
    assert told.resource.attributes["service.name"] == "fastovms"
    assert told.resource.attributes["service.version"] == __version__


def test_span_of_embeddings_has_no_attributes_of_generation(recorder: Recorder) -> None:
    start = replace(
        START,
        kind=GenerationKind.EMBEDDINGS,
        response_id="",
        params=None,
        is_streamed=False,
        conversation_id=None,
        form=EncodingFormat(8, "base64"),
    )
    recorder.record(start, GenerationEnd([], 5, None, None, END.phases[:2], None))
    [told] = recorder.spans()
    assert told.name == "embeddings fast"
    assert [event.name for event in told.events] == ["queue", "prefill"]
    assert dict(told.attributes or {}) == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "fastovms",
        "gen_ai.request.model": "fast",
        "gen_ai.response.model": "m",
        "gen_ai.request.id": "r-1",
        "gen_ai.embeddings.dimension.count": 8,
        "gen_ai.request.encoding_formats": ("base64",),
        "gen_ai.usage.input_tokens": 5,
    }


def test_failed_generation_is_an_error_span(recorder: Recorder) -> None:
    recorder.record(end=END._replace(error=("EngineFailed", "out of order"), finish_reasons=[]))
    [told] = recorder.spans()
    assert (told.status.status_code, told.status.description) == (
        StatusCode.ERROR, "out of order",
    )  # fmt: skip
    assert told.attributes is not None
    assert told.attributes["error.type"] == "EngineFailed"
    assert "gen_ai.response.finish_reasons" not in told.attributes


def test_request_without_a_trace_begins_one(recorder: Recorder) -> None:
    contexts = [recorder.record(replace(START, trace=None)) for _ in range(2)]
    told = recorder.spans()
    assert [span.parent for span in told] == [None, None]
    assert len({context.trace_id for context in contexts}) == 2
    assert len({context.span_id for context in contexts}) == 2
    assert all(context.is_recorded and not context.parent_id for context in contexts)


@pytest.mark.parametrize(
    ("sampler", "trace", "is_recorded"),
    [
        (None, replace(TRACE, is_sampled=False), False),
        ("parentbased_always_off", TRACE, True),
        ("parentbased_always_off", None, False),
        ("always_off", TRACE, False),
        ("always_on", replace(TRACE, is_sampled=False), True),
    ],
)
def test_caller_and_environment_decide_what_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
    sampler: str | None,
    trace: TraceContext | None,
    is_recorded: bool,
) -> None:
    if sampler is not None:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    recorder = Recorder()
    span = recorder.tracer.begin(replace(START, trace=trace))
    assert (span is not None) is is_recorded
    recorder.tracer.close()


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/otlp", "http://c:4318/otlp"),
        (None, "http://from.environment/v1/traces"),
    ],
)
def test_spans_go_to_the_endpoint_or_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, address: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://from.environment")
    exporter = otlp_exporter(endpoint)
    assert vars(exporter)["_endpoint"] == address
    exporter.shutdown()
