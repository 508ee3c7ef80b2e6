"""A tracer that keeps what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastovms.telemetry.tracing import GenerationEnd, GenerationStart, TraceContext


@dataclass
class FakeSpan:
    start: GenerationStart
    context: TraceContext = field(default_factory=lambda: TraceContext("a" * 32, "b" * 16))
    ends: list[GenerationEnd] = field(default_factory=list)

    def end(self, end: GenerationEnd) -> None:
        self.ends.append(end)


class FakeTracer:
    """Keeps the spans that it has begun."""

    def __init__(self) -> None:
        self.spans: list[FakeSpan] = []

    def begin(self, start: GenerationStart) -> FakeSpan:
        self.spans.append(FakeSpan(start))
        return self.spans[-1]

    @property
    def only(self) -> tuple[GenerationStart, GenerationEnd]:
        [span] = self.spans
        [end] = span.ends
        return span.start, end
