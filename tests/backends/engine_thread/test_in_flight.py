"""Requests in flight: who is told what, how long each waited, and who is one too many."""

from __future__ import annotations

import pytest

from fastovms.backend_stats import BackendStats
from fastovms.backends.engine_thread.in_flight import RequestsInFlight, StepReport, check_length
from fastovms.errors import Overloaded, RequestError
from fastovms.params import (
    EngineOutput,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
)
from tests.fakes import model_info


def request(request_id: str, n: int = 1) -> GenerationRequest:
    return GenerationRequest(request_id, [1], SamplingParams(n=n))


def output(request_id: str, index: int = 0, reason: FinishReason | None = None) -> EngineOutput:
    return EngineOutput(request_id, GenerationOutput(index, [7], reason, 1))


def step(*outputs: EngineOutput, admitted: tuple[str, ...] = (), received: int = 0,
         waiting: int = 0, seconds: float | None = 0.5, at: float = 0.0) -> StepReport:  # fmt: skip
    stats = BackendStats(num_waiting=waiting)
    return StepReport(list(outputs), list(admitted), at, stats, received, seconds)


class Flight(RequestsInFlight):
    """With a clock of the test's, and a note of who was aborted."""

    def __init__(self, max_num_waiting: int = 9) -> None:
        self.now = 100.0
        self.aborted: list[str] = []
        super().__init__(
            max_num_waiting=max_num_waiting, abort=self.aborted.append, clock=lambda: self.now
        )


def test_each_output_goes_to_its_request_until_it_has_finished() -> None:
    flight = Flight()
    told: dict[str, list[GenerationOutput]] = {"a": [], "b": []}
    for name, listener in told.items():
        flight.add(request(name, n=2), listener.append)
    end = FinishReason.STOP
    flight.deliver(step(output("a"), output("b", 1, end), output("a", 1, end), output("x")))
    flight.deliver(step(output("b", 1), output("a", 1), output("a", 0, end), output("a")))
    assert [told_output.index for told_output in told["a"]] == [0, 1, 0]
    assert [told_output.index for told_output in told["b"]] == [1]
    assert flight.discard("a", None) is False
    assert flight.discard("b", None) is True


def test_the_first_output_after_admission_tells_the_wait() -> None:
    flight, told = Flight(), []
    flight.add(request("a"), told.append)
    flight.deliver(step(output("a"), admitted=("a",), at=103.0))
    flight.deliver(step(output("a"), admitted=("a",), at=109.0))  # preempted, and back
    assert [each.queue_time for each in told] == [3.0, None]


def test_those_on_their_way_to_the_engine_wait_too() -> None:
    flight = Flight(max_num_waiting=3)
    flight.add(request("a", n=2), lambda _: None)
    assert flight.stats.num_waiting == 2
    flight.deliver(step(received=2, waiting=1))
    assert flight.stats.num_waiting == 1
    flight.add(request("b", n=2), lambda _: None)
    with pytest.raises(Overloaded, match="3 requests are waiting"):
        flight.add(request("c"), lambda _: None)


def test_the_time_of_steps_is_kept_and_that_of_none_is_not() -> None:
    flight = Flight()
    assert flight.stats.step_seconds is None
    for seconds in (0.5, None, 2.0, 1.0):
        flight.deliver(step(seconds=seconds))
    assert flight.stats.longest_step_seconds == 2.0
    assert flight.stats.step_seconds is not None
    assert flight.stats.step_seconds.count == 3


def test_a_listener_that_fails_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    flight, told = Flight(), []

    def fail(_: GenerationOutput) -> None:
        raise ValueError("no")

    flight.add(request("bad"), fail)
    flight.add(request("good"), told.append)
    flight.deliver(step(output("bad"), output("good")))
    assert flight.aborted == ["bad"]
    assert len(told) == 1
    assert "request bad failed on its output" in caplog.text


@pytest.mark.parametrize(
    ("index", "num_told"), [(None, 0), (0, 1)], ids=["all of it", "one sample"]
)
def test_what_is_discarded_is_not_told(index: int | None, num_told: int) -> None:
    flight, told = Flight(), []
    flight.add(request("a", n=2), told.append)
    assert flight.discard("a", index)
    flight.deliver(step(output("a", 0), output("a", 1)))
    assert len(told) == num_told


def test_at_the_end_every_sample_has_its_reason() -> None:
    flight, told = Flight(), []
    flight.add(request("a", n=2), told.append)
    flight.add(request("b"), lambda _: flight.discard("c", None) and None)
    flight.add(request("c"), told.append)
    flight.discard("a", 0)
    flight.end_all(FinishReason.ERROR, "gone")
    assert [(each.index, each.finish_reason, each.error) for each in told] == [
        (1, FinishReason.ERROR, "gone")
    ]


def test_a_listener_that_fails_at_the_end_keeps_it_from_nobody() -> None:
    flight, told = Flight(), []

    def fail(_: GenerationOutput) -> None:
        flight.discard("bad", None)
        raise ValueError("no")

    flight.add(request("bad", n=2), fail)
    flight.add(request("good"), told.append)
    flight.end_all(FinishReason.ERROR, "gone")
    assert flight.aborted == ["bad"]
    assert [each.error for each in told] == ["gone"]


@pytest.mark.parametrize(("num_tokens", "fits"), [(63, True), (64, False), (65, False)])
def test_a_prompt_must_leave_room(num_tokens: int, fits: bool) -> None:
    asked = GenerationRequest("r", [1] * num_tokens, SamplingParams())
    if fits:
        check_length(asked, model_info())
        return
    with pytest.raises(RequestError, match=f"the prompt has {num_tokens} tokens") as caught:
        check_length(asked, model_info())
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
