"""What is too much, too large or too old."""

from __future__ import annotations

import pytest

from fastovms.state.state_database import StateBounds
from fastovms.state.tables import Totals

BOUNDS = StateBounds(max_age=100, max_count=3, max_bytes=1000)


@pytest.mark.parametrize(
    ("totals", "oldest_use", "is_exceeded"),
    [
        (Totals(), None, False),
        (Totals(3, 1000), 901.0, False),
        (Totals(4, 1000), 901.0, True),
        (Totals(3, 1001), 901.0, True),
        (Totals(1, 1), 900.0, True),
    ],
)
def test_bounds(totals, oldest_use, is_exceeded):
    assert BOUNDS.is_exceeded(totals, oldest_use, now=1000.0) is is_exceeded


def test_seconds_to_expiry():
    assert BOUNDS.seconds_to_expiry(None, 1000.0) is None
    assert BOUNDS.seconds_to_expiry(950.0, 1000.0) == 50
    assert BOUNDS.seconds_to_expiry(1.0, 1000.0) == 0
