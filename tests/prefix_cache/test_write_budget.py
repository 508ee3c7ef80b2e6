from __future__ import annotations

from fastovms.prefix_cache.write_budget import WriteBudget, WrittenToday

DAY = 24 * 3600


def test_the_rate_holds_over_any_time() -> None:
    now = 100.0
    budget = WriteBudget(10, 1000, clock=lambda: now, unix_time=lambda: 0)
    assert budget.spend(20) == 2
    assert budget.spend(20) == 4
    now += 5
    assert budget.spend(20) == 2  # nothing is saved up
    assert budget.spend(10, share=0.5) == 4


def test_a_day_has_its_budget_whoever_has_written() -> None:
    time = 3.5 * DAY
    budget = WriteBudget(1e9, 100, WrittenToday(3, 80), unix_time=lambda: time)
    assert budget.has_room(20)
    assert not budget.has_room(21)
    budget.spend(20)
    assert budget.written == WrittenToday(3, 100)
    time += DAY
    assert budget.has_room(100)
    budget.spend(1)
    assert budget.written == WrittenToday(4, 1)
