"""Which rows of its tables a model's states are read from and written to."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from fastovms.engine.model.batch_invariance import without_single_rows
from fastovms.engine.model.state_rows import (
    MAX_DRAFT_STATE_BYTES,
    MAX_DRAFT_STATES,
    StateRows,
    States,
)
from fastovms.engine.model.step_inputs import StepInputs, StepLayout

SIZE = 4
NUM_BLOCKS = 100
NUM_DRAFT_ROWS = 5
ZERO = NUM_BLOCKS
DRAFT = ZERO + 1
SECOND = DRAFT + NUM_DRAFT_ROWS


def rows(*, has_doubles: bool = False) -> StateRows:
    return StateRows(NUM_BLOCKS, SIZE, NUM_DRAFT_ROWS, has_doubles=has_doubles)


def inputs_of(*chunks: tuple[int, int, int]) -> StepInputs:
    """Each is of a sequence of its own: from a position to another, with so many drafts in it. Its
    blocks begin at ten times its number."""
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


def test_drafts_of_a_step_before_are_forgotten() -> None:
    made = rows()
    made.add_to(inputs_of((6, 9, 2)))
    made.add_to(inputs_of((6, 7, 0)))
    with pytest.raises(KeyError):
        made.accepted(array("i", (0, 1, 2)), 7, 8)


def test_more_drafts_than_rows_are_a_fault() -> None:
    with pytest.raises(AssertionError, match="more drafts"):
        rows().add_to(inputs_of((6, 13, 6)))


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
