from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import pytest

from fastovms.backends.engine_thread.compute_turn import (
    MAX_SLICE,
    MIN_SLICE,
    SLICE_SHARE,
    ComputeTurn,
)
from fastovms.backends.engine_thread.working_engines import WorkingEngines

TIMEOUT = 10


class Worker:
    """Enters a context in a thread, and stays in it until it is told to leave."""

    def __init__(self, context: AbstractContextManager[None]) -> None:
        self.entered = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(context,))
        self._thread.start()

    def _run(self, context: AbstractContextManager[None]) -> None:
        with context:
            self.entered.set()
            assert self._leave.wait(TIMEOUT)

    def leave(self) -> None:
        assert self.entered.wait(TIMEOUT)
        self._leave.set()
        self._thread.join(TIMEOUT)


@pytest.fixture
def engines() -> WorkingEngines:
    return WorkingEngines()


def make(engines: WorkingEngines, num_working: int = 1) -> ComputeTurn:
    turn = ComputeTurn(engines)
    turn.add_encoder()
    for _ in range(num_working):
        engines.begin()
    return turn


def test_nobody_waits_without_encoders(engines):
    turn = ComputeTurn(engines)
    with turn.step(), turn.step():
        pass


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


def test_engines_do_not_wait_for_each_other(engines):
    turn = make(engines, 2)
    first = Worker(turn.step())
    second = Worker(turn.step())
    assert first.entered.wait(TIMEOUT)
    assert second.entered.wait(TIMEOUT)
    slicing = Worker(turn.slice())
    first.leave()
    second.leave()
    slicing.leave()


def test_an_engine_that_goes_to_rest_lets_slices_pass(engines):
    turn = make(engines)
    with turn.slice() if turn.slice_seconds is None else turn.step():
        pass
    first = Worker(turn.slice())
    first.leave()
    second = Worker(turn.slice())
    engines.end()
    second.leave()


def test_encoders_exclude_each_other(engines):
    turn = make(engines, 0)
    first = Worker(turn.slice())
    assert first.entered.wait(TIMEOUT)
    second = Worker(turn.slice())
    assert not second.entered.is_set()
    first.leave()
    second.leave()


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
