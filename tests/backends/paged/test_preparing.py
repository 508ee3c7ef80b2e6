"""Tests of processes that prepare something beside the requests."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from fastovms.backends.paged import preparing
from fastovms.backends.paged.preparing import run_preparation
from fastovms.backends.processes import WorkerFailed

Event = tuple[str, object]


class FakeProcess:
    """A process that answers after a number of waits, and its connection."""

    def __init__(self, events: list[Event], num_waits: int, answer: object) -> None:
        self.connection = self
        self.pid = 7
        self._events = events
        self._num_waits = num_waits
        self._answer = answer

    def poll(self, seconds: float) -> bool:
        self._events.append(("run", seconds))
        self._num_waits -= 1
        return self._num_waits < 0

    def send_signal(self, number: signal.Signals) -> None:
        self._events.append(("signal", number))

    def end(self) -> None:
        self._events.append(("end", None))

    def close(self) -> str:
        return "has ended"


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Returns the list of events of started processes, each of which takes two waits."""
    found: list[Event] = []

    def start(*command: str, dies_with_thread: bool) -> FakeProcess:
        assert dies_with_thread
        found.append(("start", command))
        return FakeProcess(found, 2, "answer")

    monkeypatch.setattr(preparing, "ChildProcess", start)
    monkeypatch.setattr(preparing, "send", lambda _, message: found.append(("send", message)))
    monkeypatch.setattr(preparing, "receive", lambda process: process._answer)
    monkeypatch.setattr(
        os, "setpriority", lambda _, pid, niceness: found.append(("niceness", niceness))
    )
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda pid, policy, _: found.append(("policy", policy))
    )
    return found


def test_a_process_is_stopped_in_turn_while_engines_work(events: list[Event]) -> None:
    waits: list[float] = []

    def may_go_on(_: float, patience: float = 5.0, /) -> bool:
        waits.append(patience)
        return True

    assert run_preparation("module", "x", may_go_on=may_go_on, message="hello") == "answer"
    turn = [("run", 0.1), ("signal", signal.SIGSTOP), ("signal", signal.SIGCONT)]
    assert events == [
        ("start", ("module", "x")),
        ("niceness", 10),
        ("policy", os.SCHED_IDLE),
        ("send", "hello"),
        *turn,
        *turn,
        ("run", 0.1),
    ]
    assert waits == [0.1, 0.1]


def test_a_process_ends_with_its_backend(events: list[Event]) -> None:
    assert run_preparation("module", may_go_on=lambda *_: False) is None
    assert events[-1] == ("end", None)


def test_a_process_that_is_left_too_little_is_started_again_with_a_share(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 61.0, *[62.0] * 10])
    monkeypatch.setattr(preparing, "_seconds_of", lambda _: 1.0)
    result = run_preparation("module", may_go_on=lambda *_: True, clock=lambda: next(times))
    assert result == "answer"
    assert [event for event in events if event[0] in ("start", "policy", "end")] == [
        ("start", ("module",)),
        ("policy", os.SCHED_IDLE),
        ("end", None),
        ("start", ("module",)),
    ]


def test_a_process_that_gets_enough_is_waited_for(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 61.0, 62.0])
    monkeypatch.setattr(preparing, "_seconds_of", lambda _: 4.0)
    result = run_preparation("module", may_go_on=lambda *_: True, clock=lambda: next(times))
    assert result == "answer"
    assert len([event for event in events if event[0] == "start"]) == 1


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("json", WorkerFailed("has ended with code 1")),
        ("tests.backends.paged.prepared_module", "hello to you"),
    ],
)
def test_a_process_answers_or_fails(module: str, expected: Any) -> None:
    assert run_preparation(module, "you", may_go_on=lambda *_: True, message="hello") == expected


def test_the_time_of_a_process_is_read() -> None:
    before, found, after = os.times(), preparing._seconds_of(os.getpid()), os.times()
    tick = 2 / os.sysconf("SC_CLK_TCK")
    assert before.user + before.system - tick <= found <= after.user + after.system + tick
