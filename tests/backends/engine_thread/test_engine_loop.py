"""The loop around an engine: commands, steps, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

import pytest

from fastovms.backend_stats import BackendStats
from fastovms.backends.engine_thread.engine_loop import (
    Abort,
    Close,
    Command,
    Submit,
    run_engine,
)
from fastovms.backends.engine_thread.in_flight import StepReport
from fastovms.params import (
    EngineOutput,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
)


def request(request_id: str, n: int = 1) -> GenerationRequest:
    return GenerationRequest(request_id, [1], SamplingParams(n=n))


class Engine:
    """Finishes every request in the step after it was added."""

    def __init__(self) -> None:
        self.queue: list[GenerationRequest] = []
        self.aborted: list[tuple[str, int | None]] = []
        self.admitted: Sequence[str] = ()

    @property
    def has_work(self) -> bool:
        return bool(self.queue)

    def add(self, request: GenerationRequest) -> None:
        if request.request_id == "bad":
            raise ValueError("cannot be queued")
        self.queue.append(request)

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))

    def step(self) -> list[EngineOutput]:
        if self.queue[0].request_id == "crash":
            raise RuntimeError("out of order")
        self.admitted = [queued.request_id for queued in self.queue]
        self.queue.clear()
        output = GenerationOutput(0, [7], FinishReason.STOP, 1)
        return [EngineOutput(request_id, output) for request_id in self.admitted]


def run(engine: Engine, *batches: list[Command]) -> tuple[list[StepReport], list[bool]]:
    """The steps that are told, and whether the loop would have waited for each batch."""
    left, waits, told = iter(batches), [], []

    def receive(wait: bool) -> Iterable[Command]:
        waits.append(wait)
        return next(left)

    ticks = count(1.0, 0.5)
    run_engine(
        engine,
        receive=receive,
        take_stats=BackendStats,
        publish=told.append,
        clock=lambda: next(ticks),
    )
    return told, waits


def test_a_step_follows_the_commands_that_came_together() -> None:
    told, waits = run(Engine(), [Submit(request("a")), Submit(request("b", n=2))], [Close()])
    [step] = told
    assert [output.request_id for output in step.outputs] == ["a", "b"]
    assert list(step.admitted) == ["a", "b"]
    assert (step.started_at, step.seconds, step.num_received) == (1.0, 0.5, 3)
    assert waits == [True, True]


def test_a_working_engine_is_not_kept_waiting() -> None:
    engine = Engine()
    engine.queue.append(request("before"))
    _, waits = run(engine, [], [Close()])
    assert waits == [False, True]


def test_commands_without_a_step_are_told_as_well() -> None:
    engine = Engine()
    told, _ = run(engine, [Abort("a", 1)], [Close()])
    assert engine.aborted == [("a", 1)]
    assert [(step.outputs, step.seconds) for step in told] == [([], None)]


def test_a_request_that_cannot_be_queued_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    told, _ = run(Engine(), [Submit(request("bad", n=2)), Submit(request("a"))], [Close()])
    found = {
        (output.request_id, output.output.index, output.output.finish_reason)
        for output in told[0].outputs
    }
    assert found == {
        ("bad", 0, FinishReason.ERROR),
        ("bad", 1, FinishReason.ERROR),
        ("a", 0, FinishReason.STOP),
    }
    assert told[0].num_received == 3
    assert "request bad failed" in caplog.text


def test_an_error_of_a_step_ends_the_loop() -> None:
    with pytest.raises(RuntimeError, match="out of order"):
        run(Engine(), [Submit(request("crash"))])


def test_nothing_is_done_after_close() -> None:
    engine = Engine()
    told, _ = run(engine, [Close(), Submit(request("late"))])
    assert told == engine.queue == []
