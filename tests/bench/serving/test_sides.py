from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.serving.load_shape import Request
from bench.serving.sides import Genai

STEP = 1.0
"""Seconds of a step of the fake pipeline."""


@dataclass
class FakeHandle:
    num_left: int
    unread: list[Any] = field(default_factory=list)

    def can_read(self) -> bool:
        return bool(self.unread)

    def read(self) -> dict[int, Any]:
        return {0: self.unread.pop(0)}


class FakePipeline:
    """Each step brings every request one token, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.handles: list[FakeHandle] = []
        self.request_ids: list[int] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def add_request(self, request_id: int, prompt: Any, config: Any) -> FakeHandle:
        assert config.ignore_eos
        assert not config.do_sample
        self.request_ids.append(request_id)
        self.handles.append(FakeHandle(config.max_new_tokens))
        return self.handles[-1]

    def has_non_finished_requests(self) -> bool:
        return any(handle.num_left for handle in self.handles)

    def step(self) -> None:
        self.now += STEP
        for handle in self.handles:
            if handle.num_left:
                handle.num_left -= 1
                handle.unread.append(SimpleNamespace(generated_ids=[7]))


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline()


@pytest.fixture
def genai(pipeline: FakePipeline) -> Genai:
    return Genai(cast("Any", pipeline), clock=pipeline.clock, sleep=pipeline.sleep)


def request(due: float = 0.0, num_output_tokens: int = 2) -> Request:
    return Request([5, 6, 7], num_output_tokens, due)


@pytest.mark.parametrize(
    ("dues", "arrivals", "slept"),
    [
        ([0.0, 0.0], [[1, 2], [1, 2]], []),
        ([0.0, 0.5], [[1, 2], [2, 3]], []),  # the second waits for the step to end
        ([0.0, 9.0], [[1, 2], [10, 11]], [7.0]),
        ([3.0, 3.0, 3.0], [[4, 5]] * 3, [3.0]),
    ],
)
def test_the_pipeline_gets_requests_when_they_are_due(
    genai: Genai,
    pipeline: FakePipeline,
    dues: list[float],
    arrivals: list[list[float]],
    slept: list[float],
) -> None:
    load = genai([request(due) for due in dues])
    timelines = load.timelines
    assert [[time - 100.0 for time in timeline.arrivals] for timeline in timelines] == arrivals
    assert [timeline.started - 100.0 for timeline in timelines] == dues
    assert load.num_tokens == 2 * len(dues)
    assert pipeline.slept == slept
