from __future__ import annotations

import mmap
import resource

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.engine.model.machine import commit_ahead
from fastovms.engine.model.machine.commit_ahead import CommitAhead, commit

NUM_ROWS = 4096
ROW_BYTES = 4096


def memories() -> list[NDArray[np.uint8]]:
    """Of 16 MiB each, which nobody has written to. numpy's own would be of huge pages."""
    maps = [mmap.mmap(-1, NUM_ROWS * ROW_BYTES) for _ in range(2)]
    return [np.frombuffer(memory, np.uint8).reshape(NUM_ROWS, ROW_BYTES) for memory in maps]


def num_faults(arrays: list[NDArray[np.uint8]], start: int, end: int) -> int:
    """Of writing to rows of each."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for array in arrays:
        array[start:end] = 7
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def advance(ahead: CommitAhead, num_used: int = 0) -> int:
    """To the end; returns the number of calls."""
    count = 0
    while ahead.advance(num_used):
        count += 1
    return count


def test_rows_are_committed_before_they_are_written() -> None:
    arrays = memories()
    ahead = CommitAhead(arrays, 1000, 1000)
    assert advance(ahead) == 1 + 2 * 2, "bit by bit"
    assert advance(ahead) == 0
    committed, others = num_faults(arrays, 0, 990), num_faults(arrays, 2000, 2990)
    assert committed * 5 < others


def test_more_are_committed_as_rows_come_into_use() -> None:
    arrays = memories()
    ahead = CommitAhead(arrays, 1000, 1000)
    for num_used in range(0, 2001, 100):
        advance(ahead, num_used)
    committed, others = num_faults(arrays, 2000, 2490), num_faults(arrays, 3100, 3590)
    assert committed * 5 < others


@pytest.mark.parametrize(
    ("num_used", "expected"),
    [(0, 100), (100, 200), (300, 600), (1000, 1500), (NUM_ROWS - 200, NUM_ROWS)],
)
def test_as_much_is_committed_again_as_is_used(
    monkeypatch: pytest.MonkeyPatch, num_used: int, expected: int
) -> None:
    arrays = memories()
    committed: list[NDArray[np.uint8]] = []
    monkeypatch.setattr(commit_ahead, "commit", lambda rows: committed.append(rows) or True)
    advance(CommitAhead(arrays, 100, 500), num_used)
    assert sum(len(rows) for rows in committed) == 2 * (expected - num_used)


@pytest.mark.parametrize("num_blocks_ahead", [0, 1, 10 * NUM_ROWS])
@pytest.mark.parametrize("num_used", [1, NUM_ROWS, 10 * NUM_ROWS])
def test_arrays_may_end_before(num_used: int, num_blocks_ahead: int) -> None:
    arrays = memories()
    ahead = CommitAhead(arrays, num_blocks_ahead, num_blocks_ahead)
    advance(ahead)
    advance(ahead, num_used)
    assert advance(ahead, num_used) == 0
    for array in arrays:
        array[:] = 7


def test_there_may_be_nothing_to_commit() -> None:
    assert not CommitAhead([], 100, 200).advance(0)


def test_what_is_there_stays() -> None:
    (array, _) = memories()
    array[100] = np.arange(ROW_BYTES) % 251
    assert commit(array[50:150])
    assert (array[100] == np.arange(ROW_BYTES) % 251).all()


def test_nothing_is_too_little_to_commit() -> None:
    assert commit(np.empty((0, 5), np.uint8))
    assert commit(np.empty((1, 5), np.uint8))


def test_a_kernel_that_cannot_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(commit_ahead, "commit", lambda memory: bool(asked.append(memory)))
    ahead = CommitAhead(memories(), 100, 100)
    advance(ahead)
    advance(ahead, 3000)
    assert len(asked) == 1
