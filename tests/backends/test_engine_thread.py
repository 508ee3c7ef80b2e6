"""Tests of `fastovms/backends/engine_thread.py`."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count

import pytest

from fastovms.backend_stats import BackendStats
from fastovms.backends import engine_thread
from fastovms.backends.engine_thread import (
    MAX_SLICE,
    MIN_SLICE,
    SLICE_SHARE,
    Abort,
    ActiveEngines,
    Close,
    Command,
    ComputeTurn,
    RequestsInFlight,
    StepReport,
    Submit,
    run_engine,
    start_thread,
)
from fastovms.backends.processes import TRIAL_STACK
from fastovms.errors import Overloaded
from fastovms.params import (
    EngineOutput,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
)


def test_watchers_get_the_number_of_working_engines() -> None:
    engines = ActiveEngines()
    engines.begin()
    first: list[int] = []
    second: list[int] = []
    engines.watch(first.append)
    engines.begin()
    engines.watch(second.append)
    with pytest.raises(RuntimeError), engines.rest():
        raise RuntimeError
    engines.end()
    assert first == [1, 2, 1, 2, 1]
    assert second == [2, 1, 2, 1]


def test_a_wait_for_rest_ends_when_no_engine_works() -> None:
    engines = ActiveEngines()
    assert engines.wait_for_rest(0)
    engines.begin()
    assert not engines.wait_for_rest(0)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(engines.wait_for_rest(TIMEOUT)))
    thread.start()
    engines.end()
    thread.join()
    assert found == [True]


TIMEOUT = 60


class Worker:
    """Enters a context in a thread, and leaves it when the test requests it."""

    def __init__(self, context: AbstractContextManager[None]) -> None:
        self.entered = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(context,))
        self._thread.start()

    def _run(self, context: AbstractContextManager[None]) -> None:
        with context:
            self.entered.set()
            assert self._leave.wait(TIMEOUT)

    def let_pass(self) -> None:
        self._leave.set()

    def leave(self) -> None:
        assert self.entered.wait(TIMEOUT)
        self._leave.set()
        self._thread.join(TIMEOUT)


@pytest.fixture
def engines() -> ActiveEngines:
    return ActiveEngines()


def make(engines: ActiveEngines, num_working: int = 1) -> ComputeTurn:
    turn = ComputeTurn(engines)
    turn.add_encoder()
    for _ in range(num_working):
        engines.begin()
    return turn


def test_slices_follow_each_other_while_engines_rest(engines):
    turn = make(engines)
    with engines.rest():
        for _ in range(3):
            assert turn.slice_seconds is None
            with turn.slice():
                pass


def test_a_slice_follows_each_step(engines):
    turn = make(engines)
    with turn.step():
        slicing = Worker(turn.slice())
        assert not slicing.entered.is_set()
    assert slicing.entered.wait(TIMEOUT)
    stepping = Worker(turn.step())
    again = Worker(turn.slice())
    slicing.leave()
    assert stepping.entered.wait(TIMEOUT)  # the engine comes first
    assert not again.entered.is_set()
    stepping.leave()
    again.leave()


def test_an_engine_that_goes_to_rest_lets_slices_pass(engines):
    turn = make(engines)
    with turn.slice() if turn.slice_seconds is None else turn.step():
        pass
    first = Worker(turn.slice())
    first.leave()
    second = Worker(turn.slice())
    engines.end()
    second.leave()


def test_an_encoder_that_comes_back_waits_for_those_that_came_before(engines):
    turn = make(engines, 0)
    other = None
    for _ in range(20):
        with turn.slice():
            assert other is None or other.entered.is_set()
            other = Worker(turn.slice())
            other.let_pass()
            while not turn._waiting:
                time.sleep(0.001)
    other.leave()


@pytest.mark.parametrize(
    ("step", "seconds"), [(0.001, MIN_SLICE), (0.02, 0.02 * SLICE_SHARE), (0.5, MAX_SLICE)]
)
def test_slices_are_as_long_as_steps_allow(engines, step, seconds):
    now = [0.0]
    turn = ComputeTurn(engines, lambda: now[0])
    turn.add_encoder()
    engines.begin()
    with turn.step():
        now[0] += step
    assert turn.slice_seconds == pytest.approx(seconds)
    turn.remove_encoder()
    with turn.step():
        pass


# Requests in flight: their notifications, their waiting times, and the limit of their number.


def request(request_id: str, n: int = 1) -> GenerationRequest:
    return GenerationRequest(request_id, [1], SamplingParams(n=n))


def output(request_id: str, index: int = 0, reason: FinishReason | None = None) -> EngineOutput:
    return EngineOutput(request_id, GenerationOutput(index, [7], reason, 1))


def step(*outputs: EngineOutput, admitted: tuple[str, ...] = (), received: int = 0,
         waiting: int = 0, seconds: float | None = 0.5, at: float = 0.0) -> StepReport:  # fmt: skip
    stats = BackendStats(num_waiting=waiting)
    return StepReport(list(outputs), list(admitted), at, stats, received, seconds)


class Flight(RequestsInFlight):
    """Requests in flight with the test's clock, and the list of aborted ones."""

    def __init__(self, max_num_waiting: int = 9) -> None:
        self.now = 100.0
        self.aborted: list[str] = []
        super().__init__(
            max_num_waiting=max_num_waiting, abort=self.aborted.append, clock=lambda: self.now
        )


def test_queue_that_one_owner_fills_has_places_for_others() -> None:
    flight = Flight(max_num_waiting=4)

    def add(owner: str, name: str) -> None:
        flight.add(replace(request(name), owner=owner), lambda _: None)

    for number in range(4):
        add("a", f"a{number}")
    for owner, most in (("a", 0), ("b", 2), ("c", 1), ("a", 0)):
        for number in range(most):
            add(owner, f"{owner}{number}")
        with pytest.raises(Overloaded):
            add(owner, f"{owner} too many")
    flight.deliver(step(admitted=("a0", "a1")))
    flight.discard("a2", None)
    flight.deliver(step(output("b0", 0, FinishReason.ERROR)))
    add("b", "b again")
    flight.end_all(FinishReason.ABORT, None)
    flight._places.check()
    assert flight._places.used == 0


def test_stats_count_only_steps_with_a_duration() -> None:
    flight = Flight()
    assert flight.stats.step_seconds is None
    for seconds in (0.5, None, 2.0, 1.0):
        flight.deliver(step(seconds=seconds))
    assert flight.stats.longest_step_seconds == 2.0
    assert flight.stats.step_seconds is not None
    assert flight.stats.step_seconds.count == 3


def test_failing_listener_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    flight, told = Flight(), []

    def fail(_: GenerationOutput) -> None:
        flight.discard("bad", None)
        raise ValueError("no")

    flight.add(request("bad", n=2), fail)
    flight.add(request("good", n=2), told.append)
    flight.deliver(step(output("bad"), output("good", 0, FinishReason.STOP), output("good")))
    flight.end_all(FinishReason.ERROR, "gone")
    assert flight.aborted == ["bad"]
    assert "request bad failed while its output was processed" in caplog.text
    assert [(each.index, each.error) for each in told] == [(0, None), (1, "gone")]


# The loop around an engine: commands, steps and notifications.


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
        self.queue.append(request)

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))

    def step(self) -> list[EngineOutput]:
        self.admitted = [queued.request_id for queued in self.queue]
        self.queue.clear()
        return [output(request_id, 0, FinishReason.STOP) for request_id in self.admitted]


def run(engine: Engine, *batches: list[Command]) -> tuple[list[StepReport], list[bool]]:
    """Returns the reported steps, and whether the loop would have waited for each batch."""
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
    engine = Engine()
    engine.queue.append(request("before"))
    told, waits = run(
        engine,
        [],
        [Submit(request("a")), Submit(request("b", n=2))],
        [Abort("c", 1)],
        [Close(), Submit(request("late"))],
    )
    of_steps = [[one.request_id for one in step.outputs] for step in told]
    assert of_steps == [["before"], ["a", "b"], []]
    _, step, last = told
    assert list(step.admitted) == ["a", "b"]
    assert (step.started_at, step.seconds, step.num_received) == (2.0, 0.5, 3)
    assert last.seconds is None
    assert engine.aborted == [("c", 1)]
    assert engine.queue == []
    assert waits == [False, True, True, True], "a working engine is not kept waiting"


# Threads with large stacks.


def stack_size() -> int:
    """Returns the size of the calling thread's stack in bytes, according to the C library."""
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_ulong
    attributes, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
    assert libc.pthread_getattr_np(ctypes.c_ulong(libc.pthread_self()), attributes) == 0
    assert libc.pthread_attr_getstacksize(attributes, ctypes.byref(size)) == 0
    libc.pthread_attr_destroy(attributes)
    return size.value


def test_the_thread_has_several_times_the_stack_of_trials() -> None:
    found: list[int] = []
    thread = start_thread(lambda: found.append(stack_size()), name="deep")
    thread.join(60)
    assert found[0] >= 8 * TRIAL_STACK
    assert (thread.name, thread.daemon) == ("deep", True)


def test_threads_that_start_at_once_leave_the_stack_of_others_as_it_was() -> None:
    def start_some() -> None:
        for _ in range(50):
            start_thread(lambda: None, name="deep").join(60)

    with engine_thread._STACK_SIZE_LOCK:
        before = threading.stack_size()
    starters = [threading.Thread(target=start_some) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(60)
    with engine_thread._STACK_SIZE_LOCK:
        assert threading.stack_size() == before
