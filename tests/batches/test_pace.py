"""Long work in a thread rests, by steps and by bytes, and ends when it is told to."""

from __future__ import annotations

import pytest

from fastovms.batches import pace
from fastovms.batches.pace import Pace, Stopped


@pytest.mark.parametrize(
    ("sizes", "num_rests"), [([1] * 31, 0), ([1] * 64, 2), ([100_000] * 4, 2), ([10**6] * 3, 3)]
)
def test_rests(monkeypatch, sizes: list[int], num_rests: int) -> None:
    rests: list[float] = []
    monkeypatch.setattr(pace.time, "sleep", rests.append)
    quick, slow = Pace(), Pace(0.25)
    for size in sizes:
        quick.spend(size)
        slow.spend(size)
    assert rests == [0.25] * num_rests


def test_it_stops() -> None:
    one = Pace()
    one.spend(5)
    one.stop()
    with pytest.raises(Stopped):
        one.spend(5)
