"""Tests of `fastovms/system/clock.py`."""

from __future__ import annotations

import pytest

from fastovms.system.clock import ExpiryRounds, SteadyClock

YEARS = 100 * 365 * 86400.0


class Machine:
    """A machine whose clock can be set."""

    def __init__(self) -> None:
        self.elapsed = 50.0
        self.offset = 1_700_000_000.0
        self.clock = SteadyClock(lambda: self.elapsed + self.offset, lambda: self.elapsed)


@pytest.mark.parametrize("jump", [YEARS, -YEARS, 3600.0, -61.0])
def test_a_short_jump_is_not_followed(jump: float, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.offset += jump
    for _ in range(50):
        machine.elapsed += 10.0
        assert machine.clock() == 1_700_000_000.0 + machine.elapsed
    machine.offset -= jump
    for _ in range(100):
        machine.elapsed += 10.0
        assert machine.clock() == 1_700_000_000.0 + machine.elapsed
    assert [record.message for record in caplog.records] == [
        f"clock: the system's clock was set by {jump:+.0f} seconds; stored data expire by it in "
        "10 minutes if it stays so"
    ]


@pytest.mark.parametrize("jump", [YEARS, -YEARS, 3600.0])
def test_a_jump_that_lasts_is_followed(jump: float) -> None:
    machine = Machine()
    machine.clock()
    machine.offset += jump
    machine.clock()
    machine.elapsed += 599.0
    assert machine.clock() == 1_700_000_000.0 + machine.elapsed
    machine.elapsed += 1.0
    assert machine.clock() == 1_700_000_000.0 + jump + machine.elapsed


@pytest.mark.parametrize("step", [-50.0, 0.5, 59.0])
def test_small_steps_are_followed(step: float, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    for _ in range(10):
        machine.offset += step
        assert machine.clock() == machine.offset + machine.elapsed
    assert not caplog.records


def test_rounds_allow_a_share_at_a_time() -> None:
    rounds = ExpiryRounds("things")
    assert rounds.allowed(160, 1000.0) == 10
    rounds.spend(4, is_behind=lambda: True)
    assert rounds.allowed(156, 1001.0) == 6
    rounds.spend(6, is_behind=lambda: True)
    assert rounds.allowed(150, 1059.0) == 0
    assert rounds.seconds_left(1059.0) == 1.0
    assert rounds.allowed(150, 1060.0) == 9
    assert rounds.seconds_left(1061.0) == 0.0


def test_rounds_do_not_wait_for_a_clock_that_was_set_back() -> None:
    rounds = ExpiryRounds("things")
    assert rounds.allowed(1, YEARS) == 1
    rounds.spend(1, is_behind=lambda: False)
    assert rounds.seconds_left(1000.0) == 0.0
    assert rounds.allowed(1, 1000.0) == 1


def test_rounds_are_shorter_than_lives() -> None:
    rounds = ExpiryRounds("things")
    assert rounds.allowed(32, 0.5, max_age=32.0) == 2
    rounds.spend(2, is_behind=lambda: False)
    assert rounds.seconds_left(1.0) == 0.5
