from __future__ import annotations

from fastovms.backends.encoder.slice_costs import SliceCosts


def test_a_slice_has_what_fits():
    costs = SliceCosts(4)
    assert costs.end(0, 100, 1.0) == 1  # nothing is known
    assert costs.max_tokens(1.0, 50) == 50
    for segment in range(4):
        costs.note(segment, 100, 0.2)
    assert costs.end(0, 100, 1.0) == 4
    assert costs.end(0, 100, 0.41) == 2
    assert costs.end(0, 100, 0.29) == 1
    assert costs.end(0, 100, 0.31) == 2  # nearer to it than one
    assert costs.end(0, 200, 0.41) == 1
    assert costs.end(2, 50, 0.01) == 3
    assert costs.max_tokens(0.1, 1000) == 50
    assert costs.max_tokens(0.1, 20) == 20
    assert costs.max_tokens(1e-9, 20) == 1


def test_the_newest_counts_a_little():
    costs = SliceCosts(1)
    costs.note(0, 1, 1.0)
    costs.note(0, 1, 2.0)
    assert costs.max_tokens(1.3, 100) == 1
    assert costs.max_tokens(2.6, 100) == 2
