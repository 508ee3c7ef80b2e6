"""Tests of the inputs of one inference with several sequences."""

from __future__ import annotations

from array import array

import pytest

from fastovms.engine.model.step_inputs import StepLayout


def test_sequences_are_laid_out_one_after_another() -> None:
    layout = StepLayout(4)
    prompt = layout.add(array("q", range(10, 16)), 0, 5, array("i", [7, 8, 9]))
    decode = layout.add(array("q", range(20, 24)), 3, 4, array("i", [5]))
    drafted = layout.add(array("q", [30, 31]), 1, 4, array("i", [6, 4]), array("q", [32, 33, 34]))
    assert (prompt, decode, drafted) == (4, 5, 8)
    inputs = layout.finish(array("q", [5, 6]))
    expected = {
        "input_ids": [10, 11, 12, 13, 14, 23, 31, 32, 33],
        "position_ids": [0, 1, 2, 3, 4, 3, 1, 2, 3],
        "past_lens": [0, 3, 1],
        "subsequence_begins": [0, 5, 6, 9],
        "block_indices": [7, 8, 5, 6],
        "block_indices_begins": [0, 2, 3, 4],
        "max_context_len": 5,
        "sampled_token_indices": [5, 6],
        "sequence_lens": [6, 4, 2],
        "adapters": [],
        "hidden_states": [],
    }
    laid_out = {name: value.tolist() for name, value in inputs._asdict().items()}
    states = {name: laid_out.pop(name) for name in list(laid_out) if name.startswith("state_")}
    assert laid_out == expected
    assert states == {"state_rows": [], "state_row_begins": [], "state_intervals": []}
    assert inputs.token_sequence_lens.tolist() == [6] * 5 + [4] + [2] * 3


def test_ends_of_prompts_are_laid_out_as_a_step() -> None:
    layout = StepLayout(4)
    first = layout.add(array("q", range(10, 16)), 0, 6, array("i", [7, 8]), adapter=0)
    layout.add(array("q", range(50, 60)), 0, 3, array("i", [3]))  # continues in the next step
    decode = layout.add(array("q", range(20, 24)), 3, 4, array("i", [5]))
    last = layout.add(array("q", range(30, 40)), 4, 10, array("i", [6, 4, 9]))
    ends = layout.finish(array("q", [first, decode, last])).prompt_ends()
    assert ends is not None
    alone = StepLayout(4)
    alone.add(array("q", range(10, 16)), 5, 6, array("i", [7, 8]))
    alone.add(array("q", range(20, 24)), 3, 4, array("i", [5]))
    alone.add(array("q", range(30, 40)), 9, 10, array("i", [6, 4, 9]))
    for name, expected in alone.finish(array("q", [0, 1, 2]))._asdict().items():
        found = getattr(ends, name)
        assert (found.tolist(), found.dtype) == (expected.tolist(), expected.dtype), name


@pytest.mark.parametrize(
    ("tokens", "sampled"),
    [
        ([(0, 6), (0, 4)], []),  # no prompt ends
        ([(0, 6), (3, 4)], [6]),  # nor here
        ([(2, 3), (3, 4)], [0, 1]),  # no prompts
        ([(3, 6)], [0, 1, 2]),  # drafts
    ],
)
def test_steps_without_ends_of_prompts_have_no_prompt_ends(
    tokens: list[tuple[int, int]], sampled: list[int]
) -> None:
    layout = StepLayout(4)
    for start, end in tokens:
        layout.add(array("q", range(10)), start, end, array("i", [1, 2]))
    assert layout.finish(array("q", sampled)).prompt_ends() is None
