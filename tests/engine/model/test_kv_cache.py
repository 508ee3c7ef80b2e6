"""Tests of `fastovms/engine/model/kv_cache.py`."""

from __future__ import annotations

import mmap
import resource
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from fastovms.engine.model import kv_cache
from fastovms.engine.model import kv_cache as commit_ahead
from fastovms.engine.model.kv_cache import (
    MAX_DRAFT_STATE_BYTES,
    MAX_DRAFT_STATES,
    CacheInput,
    HostCache,
    KvCache,
    MemoryCommitter,
    RemoteCache,
    StateRows,
    States,
    cache_inputs,
    commit,
)
from fastovms.engine.model.model import without_single_rows
from fastovms.engine.model.step_inputs import StepInputs, StepLayout

NUM_ROWS = 4096
ROW_BYTES = 4096


def memories() -> list[NDArray[np.uint8]]:
    """Returns unwritten memories of 16 MiB each. NumPy's own memory would consist of huge pages."""
    maps = [mmap.mmap(-1, NUM_ROWS * ROW_BYTES) for _ in range(2)]
    return [np.frombuffer(memory, np.uint8).reshape(NUM_ROWS, ROW_BYTES) for memory in maps]


def num_faults(arrays: list[NDArray[np.uint8]], start: int, end: int) -> int:
    """Returns the number of page faults of writing to rows of each."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for rows in arrays:
        rows[start:end] = 7
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def advance(ahead: MemoryCommitter, num_used: int = 0) -> int:
    """Calls it to the end and returns the number of calls."""
    count = 0
    while ahead.advance(num_used):
        count += 1
    return count


def test_rows_are_committed_before_they_are_written() -> None:
    arrays = memories()
    ahead = MemoryCommitter(arrays, 1000, 1000)
    assert advance(ahead) == 1 + 2 * 2, "bit by bit"
    assert advance(ahead) == 0
    committed, others = num_faults(arrays, 0, 990), num_faults(arrays, 2000, 2990)
    assert committed * 5 < others


@pytest.mark.parametrize(
    ("num_used", "expected"),
    [(0, 100), (100, 200), (300, 600), (1000, 1500), (NUM_ROWS - 200, NUM_ROWS)],
)
def test_commit_ahead_doubles_the_rows_in_use(
    monkeypatch: pytest.MonkeyPatch, num_used: int, expected: int
) -> None:
    arrays = memories()
    committed: list[NDArray[np.uint8]] = []
    monkeypatch.setattr(commit_ahead, "commit", lambda rows: committed.append(rows) or True)
    advance(MemoryCommitter(arrays, 100, 500), num_used)
    assert sum(len(rows) for rows in committed) == 2 * (expected - num_used)


def test_committed_memory_keeps_its_content() -> None:
    (array, _) = memories()
    array[100] = np.arange(ROW_BYTES) % 251
    assert commit(array[50:150])
    assert (array[100] == np.arange(ROW_BYTES) % 251).all()
    assert commit(np.empty((1, 5), np.uint8)), "less than a page"


def test_a_kernel_that_cannot_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(commit_ahead, "commit", lambda memory: bool(asked.append(memory)))
    ahead = MemoryCommitter(memories(), 100, 100)
    advance(ahead)
    advance(ahead, 3000)
    assert len(asked) == 1


# The table rows that a model's states are read from and written to.


SIZE = 4
NUM_BLOCKS = 100
NUM_DRAFT_ROWS = 5
ZERO = NUM_BLOCKS
DRAFT = ZERO + 1
SECOND = DRAFT + NUM_DRAFT_ROWS


def rows(*, has_doubles: bool = False) -> StateRows:
    return StateRows(NUM_BLOCKS, SIZE, NUM_DRAFT_ROWS, has_doubles=has_doubles)


def inputs_of(*chunks: tuple[int, int, int]) -> StepInputs:
    """Returns inputs whose chunks belong to different sequences: from a position to another one,
    with the given number of drafts. The block numbers of a sequence start at ten times its number.
    """
    layout = StepLayout(SIZE)
    for number, (start, end, num_drafts) in enumerate(chunks):
        blocks = array("i", range(10 * number, 10 * number + -(-end // SIZE)))
        tokens = array("q", range(end - num_drafts))
        layout.add(tokens, start, end, blocks, array("q", range(num_drafts)))
    return layout.finish(array("q"))


@pytest.mark.parametrize(
    ("chunks", "expected", "intervals"),
    [
        ([(0, 3, 0)], [[ZERO, 0]], [SIZE]),
        ([(0, 4, 0)], [[ZERO, 0]], [SIZE]),
        ([(0, 9, 0)], [[ZERO, 0, 1, 2]], [SIZE]),
        ([(5, 6, 0)], [[1, 1]], [SIZE]),
        ([(4, 5, 0)], [[0, 1]], [SIZE]),
        ([(3, 9, 0)], [[0, 0, 1, 2]], [SIZE]),
        ([(4, 12, 0), (0, 1, 0), (7, 8, 0)], [[0, 1, 2], [ZERO, 10], [21, 21]], [SIZE] * 3),
        ([(5, 8, 2)], [[1, 1, DRAFT, DRAFT + 1]], [1]),
        (
            [(4, 6, 1), (1, 2, 0), (3, 6, 2)],
            [[0, 1, DRAFT], [10, 10], [20, 20, DRAFT + 1, DRAFT + 2]],
            [1, SIZE, 1],
        ),
    ],
)
def test_a_state_is_read_where_the_text_before_ends_and_written_where_each_block_does(
    chunks: list[tuple[int, int, int]], expected: list[list[int]], intervals: list[int]
) -> None:
    inputs = rows().add_to(inputs_of(*chunks))
    begins = inputs.state_row_begins
    assert [part.tolist() for part in np.split(inputs.state_rows, begins[1:-1])] == expected
    assert begins[-1] == len(inputs.state_rows)
    assert inputs.state_intervals.tolist() == intervals
    for name in ("state_rows", "state_row_begins", "state_intervals"):
        assert getattr(inputs, name).dtype == np.int32


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (7, 8, [(DRAFT, 1)]),
        (7, 9, [(DRAFT, 1), (DRAFT + 1, 2)]),
        (7, 11, [(DRAFT, 1), (DRAFT + 3, 2)]),
        (7, 12, [(DRAFT, 1), (DRAFT + 4, 2)]),
    ],
)
def test_the_state_after_the_last_accepted_draft_is_kept_and_that_of_each_full_block(
    first: int, end: int, expected: list[tuple[int, int]]
) -> None:
    made = rows()
    made.add_to(inputs_of((6, 12, 5)))
    assert made.accepted(array("i", (0, 1, 2)), first, end) == expected


def test_state_rows_know_the_drafts_of_the_last_step_and_no_more_than_there_are_rows() -> None:
    made = rows()
    made.add_to(inputs_of((6, 9, 2)))
    made.add_to(inputs_of((6, 7, 0)))
    with pytest.raises(KeyError):
        made.accepted(array("i", (0, 1, 2)), 7, 8)
    with pytest.raises(AssertionError, match="more drafts"):
        made.add_to(inputs_of((6, 13, 6)))


def test_a_double_leaves_its_state_in_the_second_row_of_its_block() -> None:
    made = rows(has_doubles=True)
    inputs = made.add_to(inputs_of((5, 6, 0), (0, 8, 0), (3, 4, 0)))
    doubled = without_single_rows(
        inputs, block_size=SIZE, spare_block=99, first_second_row=made.first_second_row
    )
    parts = np.split(doubled.state_rows, doubled.state_row_begins[1:-1])
    assert [part.tolist() for part in parts] == [
        [1, 1, SECOND + 1],
        [ZERO, 10, 11],
        [20, 20, SECOND + 20],
    ]
    assert doubled.state_intervals.tolist() == [1, SIZE, 1]
    assert made.num_rows == SECOND + NUM_BLOCKS


def test_large_states_leave_less_room_for_drafts() -> None:
    assert States(1024).max_draft_tokens == MAX_DRAFT_STATES
    assert States(1024).extra_bytes == (1 + MAX_DRAFT_STATES) * 1024
    assert States(MAX_DRAFT_STATE_BYTES // 3).max_draft_tokens == 3
    assert States(MAX_DRAFT_STATE_BYTES + 1).max_draft_tokens == 0


# Blocks of keys and values in the host's or in a GPU's memory.


class FakeRemoteTensor:
    """A region of an array, as `ov.RemoteTensor` is a region of the GPU's memory."""

    def __init__(self, base: Any, begin: Sequence[int], end: Sequence[int]) -> None:
        region = tuple(slice(b, e) for b, e in zip(begin, end, strict=True))
        self.data = base.data[region]

    def get_shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def copy_from(self, other: FakeRemoteTensor) -> None:
        self.data[...] = other.data


class FakeContext:
    def create_tensor(
        self, element_type: ov.Type, shape: ov.Shape, properties: dict[str, object]
    ) -> FakeRemoteTensor:
        class Base:
            data = np.arange(np.prod(list(shape)), dtype=np.float32).reshape(list(shape))

        return FakeRemoteTensor(Base, [0] * len(shape), list(shape))


WITH_STATES = [
    CacheInput("key_cache.0", ov.Type.f32, (2, 8), num_pages=3),
    CacheInput("conv_state_table.0", ov.Type.f32, (5, 2)),
]


@pytest.mark.parametrize("place", ["host", "GPU"])
def test_states_are_copied_with_their_blocks_and_alone(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(kv_cache.ov, "RemoteTensor", FakeRemoteTensor)
    monkeypatch.setattr(kv_cache.ov, "Coordinate", list)
    if place == "host":
        cache: KvCache = HostCache(WITH_STATES, 4, 7)
    else:
        cache = RemoteCache(WITH_STATES, 4, FakeContext(), 7)  # type: ignore[arg-type]
    keys, states = (tensor.data for tensor in cache.tensors.values())
    assert (keys.shape, states.shape) == ((12, 2, 8), (7, 5, 2))
    for data in (keys, states):
        data[...] = np.arange(data.size).reshape(data.shape)
    old_keys, old_states = keys.copy(), states.copy()
    cache.copy_block(1, 3)
    np.testing.assert_array_equal(keys[9:], old_keys[3:6])
    np.testing.assert_array_equal(keys[:9], old_keys[:9])
    np.testing.assert_array_equal(states[3], old_states[1])
    cache.copy_state(6, 0)
    cache.clear_state(5)
    np.testing.assert_array_equal(states[0], old_states[6])
    np.testing.assert_array_equal(states[5], 0)
    np.testing.assert_array_equal(states[[1, 2, 4, 6]], old_states[[1, 2, 4, 6]])
    np.testing.assert_array_equal(keys[:9], old_keys[:9])


class FakeCompiled:
    def __init__(self, *inputs: CacheInput) -> None:
        self.inputs = list(map(FakePort, inputs))


class FakePort:
    def __init__(self, cache_input: CacheInput) -> None:
        self._input = cache_input

    def get_any_name(self) -> str:
        return self._input.name

    def get_element_type(self) -> ov.Type:
        return self._input.element_type

    def get_partial_shape(self) -> ov.PartialShape:
        return ov.PartialShape([-1, *self._input.page_shape])


@pytest.mark.parametrize(
    ("state_shape", "num_pages"),
    [((16, 1), 1), ((16, 16), 1), ((16, 16, 1), 1), ((257, 1), 2), ((16, 64), 4)],
)
def test_a_block_has_so_many_pages_that_states_are_no_larger(
    state_shape: tuple[int, ...], num_pages: int
) -> None:
    state = CacheInput("conv_state_table.0", ov.Type.f32, state_shape)
    compiled = FakeCompiled(
        CacheInput("key_cache.0", ov.Type.f16, (2, 8, 16)),
        CacheInput("value_cache.0", ov.Type.f16, (2, 8, 16)),
        state,
    )
    keys, values, table = cache_inputs(compiled)  # type: ignore[arg-type]
    assert (keys.num_pages, values.num_pages, table.num_pages) == (num_pages, num_pages, 1)
    assert table == state
    assert keys.shape(10) == ov.Shape([10 * num_pages, 2, 8, 16])


def test_the_size_of_a_block_counts_bits() -> None:
    assert CacheInput("key_cache.0", ov.Type.u4, (2, 8, 16)).bytes_per_block == 128
    assert CacheInput("key_cache.0", ov.Type.f16, (2, 8, 16)).bytes_per_block == 512
