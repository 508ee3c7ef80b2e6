from __future__ import annotations

from fastovms.state.sql import marks, slices


def test_a_variable_for_each_value():
    assert [marks(values) for values in ([], [7], "abc")] == ["", "?", "?, ?, ?"]


def test_slices():
    assert list(slices(range(5), 2)) == [range(2), range(2, 4), range(4, 5)]
    assert list(slices([], 2)) == []
