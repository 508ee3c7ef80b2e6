"""What the rows of a step's logits are for."""

from __future__ import annotations

from array import array

import pytest

from fastovms.engine.scheduling.batch import build_batch
from fastovms.engine.scheduling.plan import Chunk
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.params import GenerationRequest, SamplingParams


def sequence(num_computed: int, num_tokens: int, *drafts: int, scores: bool = False) -> Sequence:
    params = SamplingParams(prompt_logprobs=0 if scores else None)
    made = Sequence(0, GenerationRequest("r", range(num_tokens), params), 0, token_limit=99)
    made.num_computed_tokens = num_computed
    made.draft_token_ids = array("q", drafts)
    made.block_table = array("i", range(10))
    return made


@pytest.mark.parametrize(
    ("chunks", "rows", "sampled"),
    [
        ([(sequence(0, 6), 4)], [], []),  # a part of a prompt
        ([(sequence(4, 6), 2)], [1], [0]),
        ([(sequence(5, 6), 1), (sequence(7, 8), 1)], [0, 1], [0, 0]),
        ([(sequence(5, 6, 1, 2), 3)], [0, 1, 2], [2]),
        ([(sequence(5, 6, 1, 2), 2)], [0, 1], [1]),  # no room for the second draft
        ([(sequence(0, 4), 3), (sequence(5, 6), 1)], [3], [0]),
    ],
)
def test_who_is_sampled(
    chunks: list[tuple[Sequence, int]], rows: list[int], sampled: list[int]
) -> None:
    batch = build_batch([Chunk(*chunk) for chunk in chunks], 4)
    assert batch.inputs.sampled_token_indices.tolist() == rows
    assert [tokens.num_drafts for tokens in batch.sampled] == sampled
    assert batch.scored == []


@pytest.mark.parametrize(
    ("start", "num_tokens", "num_scored", "rows", "first", "end"),
    [
        (0, 3, 1, [0, 1, 2], 1, 4),
        (3, 3, 4, [2, 0, 1], 4, 6),  # the last token's row is for the sample
        (0, 3, 3, [2], 3, 4),  # scored before a preemption
        (0, 2, 4, [], 4, 4),
    ],
)
def test_each_row_scores_the_next_token(
    start: int, num_tokens: int, num_scored: int, rows: list[int], first: int, end: int
) -> None:
    scoring = sequence(start, 6, scores=True)
    scoring.prompt_logprobs = [None] * num_scored
    batch = build_batch([Chunk(scoring, num_tokens)], 4)
    assert batch.inputs.sampled_token_indices.tolist() == rows
    assert [(tokens.start, tokens.end) for tokens in batch.scored] == [(first, end)]
