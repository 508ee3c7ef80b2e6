"""A tracer that records spans."""

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
    """Records the spans that were started."""

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
