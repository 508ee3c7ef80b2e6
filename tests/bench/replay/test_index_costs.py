"""What the index takes of a token."""

from __future__ import annotations

from bench.replay.index_costs import PARTS, costs
from bench.replay.session import Turn


def test_each_part_takes_some_time() -> None:
    found = costs([Turn(tuple(range(50)), tuple(range(40)))], 1000)
    assert tuple(found) == PARTS
    assert min(found.values()) > 0
