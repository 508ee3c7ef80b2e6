"""A batch on a real server that is killed: every line is answered once."""

from __future__ import annotations

from random import Random

import pytest

from bench.endurance.batch_faults import run_killed
from bench.endurance.server import server_under_test


@pytest.mark.nightly
def test_batch_continues_after_a_kill() -> None:
    with server_under_test("--cache-size", "0.1") as server:
        found = run_killed(server, 200, 1, Random(1))
    assert (found.num_kills, found.num_answered) == (1, 200)
    assert found.num_missing == found.num_repeated == found.num_others == 0
