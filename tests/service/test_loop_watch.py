from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fastovms.service.loop_watch import LoopWatch


class FakeLoop:
    """Has the time, and the one call that it is asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ran = 7.0
        self.due = 0.0
        self.call: Callable[[], None] | None = None

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self.due, self.call = self.now + delay, call
        return SimpleNamespace(cancel=self.cancel)

    def cancel(self) -> None:
        self.call = None

    def run(self, *, late: float, ran: float = 0.0) -> float:
        """Makes the call, `late` seconds after its time, while the thread ran for `ran` of them.
        Returns the seconds that it waited."""
        self.ran += ran
        waited = self.due - self.now
        self.now = self.due + late
        call, self.call = self.call, None
        assert call is not None
        call()
        return waited


@pytest.fixture
def watched() -> SimpleNamespace:
    loop, somebody = FakeLoop(), SimpleNamespace(is_there=True)
    watch = LoopWatch(lambda: somebody.is_there, lambda: loop.now, lambda: loop.ran)
    registry = CollectorRegistry()
    registry.register(watch)
    watch.start(loop)  # type: ignore[arg-type]
    return SimpleNamespace(loop=loop, watch=watch, somebody=somebody, get=registry.get_sample_value)


def test_every_look_counts(watched: SimpleNamespace) -> None:
    for late in (0.0, 0.003, 0.3, 0.04, -0.001):
        watched.loop.run(late=late)
    get, name = watched.get, "fastovms_loop_stall_seconds"
    assert get(f"{name}_count") == 5
    assert get(f"{name}_sum") == pytest.approx(0.343)
    assert get(f"{name}_bucket", {"le": "0.05"}) == 4
    assert get(f"{name}_bucket", {"le": "0.5"}) == 5
    assert get("fastovms_loop_longest_stall_seconds") == pytest.approx(0.3)


def test_what_keeps_the_loop_itself_is_told_from_what_it_waits_for(
    watched: SimpleNamespace,
) -> None:
    busy = "fastovms_loop_longest_busy_seconds"
    watched.loop.run(late=0.3, ran=0.02)
    assert watched.get(busy) == pytest.approx(0.02)
    watched.loop.run(late=0.1, ran=0.12)  # of which some was before the call was due
    assert watched.get(busy) == pytest.approx(0.1)
    watched.loop.run(late=0.0, ran=0.05)
    assert watched.get(busy) == pytest.approx(0.1)


def test_a_loop_that_nobody_waits_for_is_left_alone(watched: SimpleNamespace) -> None:
    assert watched.loop.run(late=0) == pytest.approx(0.05)
    watched.somebody.is_there = False
    watched.loop.run(late=0)
    assert watched.loop.run(late=0) == pytest.approx(1.0)
    watched.somebody.is_there = True
    watched.loop.run(late=0)
    assert watched.loop.run(late=0) == pytest.approx(0.05)


def test_it_ends(watched: SimpleNamespace) -> None:
    watched.watch.stop()
    assert watched.loop.call is None
