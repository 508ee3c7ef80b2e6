from __future__ import annotations

import numpy as np
import pytest

from fastovms.engine.step_costs import StepCosts
from fastovms.parts.drafts.drafting import draft_lengths

SURE = [0.95**i for i in range(1, 32)]
HALF = [0.5**i for i in range(1, 6)]
POOR = [0.05]


def costs(num_sequences: int, row_seconds: float, change_seconds: float = 0.0) -> StepCosts:
    """Returns the costs after steps of 10 ms, plus an amount for each drafted row and each change
    of shape."""
    known = StepCosts()
    for num_rows in (0, 1, 7, 31, 0, 0):
        for is_change in (True, False, False, False):
            known.learn(
                num_decodes=num_sequences,
                num_rows=num_sequences + num_rows,
                num_prefill_tokens=0,
                seconds=0.010 + num_rows * row_seconds + change_seconds * is_change,
            )
    return known


@pytest.mark.parametrize(
    ("chances", "row_seconds", "change_seconds", "expected"),
    [
        ([], 0.001, 0, []),
        ([[]], 0.001, 0, [0]),
        ([SURE], 0.0001, 0, [31]),
        ([SURE], 0.02, 0, [0]),
        ([HALF], 0.0001, 0, [5]),
        ([HALF], 0.0015, 0, [2]),
        ([HALF], 0.0001, 0.02, [0]),
        ([POOR], 0.002, 0, [0]),
        ([SURE, POOR, HALF], 0.0025, 0, None),
    ],
)
def test_as_much_is_drafted_as_gives_the_most_tokens_a_second(
    chances: list[list[float]],
    row_seconds: float,
    change_seconds: float,
    expected: list[int] | None,
) -> None:
    num_sequences = max(1, len(chances))
    known = costs(num_sequences, row_seconds, change_seconds)
    lengths = draft_lengths(
        [np.array(of) for of in chances],
        known,
        num_sequences=num_sequences,
        num_rows=num_sequences,
    )
    if expected is None:  # of several, the most likely tokens
        sure, poor, half = lengths
        assert sure > half >= poor == 0
    else:
        assert lengths == expected


def test_draft_length_is_zero_before_any_step_is_measured() -> None:
    chances = [np.array(SURE)]
    assert draft_lengths(chances, StepCosts(), num_sequences=1, num_rows=1) == [0]


def test_the_shape_of_the_step_before_is_kept_where_a_change_costs_more_than_it_brings() -> None:
    known = costs(1, 0.0002, 0.02)
    for _ in range(2):
        known.learn(num_decodes=1, num_rows=5, num_prefill_tokens=0, seconds=0.0108)
    chances = [np.array([0.4**i for i in range(1, 9)])]
    assert draft_lengths(chances, known, num_sequences=1, num_rows=1) == [4]
