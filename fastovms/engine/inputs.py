"""A plan as the ragged batch that paged attention wants."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.scheduler import Chunk
from fastovms.engine.sequence import Sequence

_NO_TOKENS = array("q")


class StepInputs(NamedTuple):
    """The inputs of one inference over S sequences with T tokens in all, B blocks in all, and R
    sampled tokens. Named as the model's inputs are.

    Attributes:
        input_ids: int64 [T].
        position_ids: int64 [T].
        past_lens: int32 [S], computed tokens before this step.
        subsequence_begins: int32 [S + 1], where each sequence's tokens start.
        block_indices: int32 [B], the block tables one after another.
        block_indices_begins: int32 [S + 1], where each table starts.
        max_context_len: int32 scalar, the longest sequence after this step.
        sampled_token_indices: int64 [R], positions in [0, T) whose logits are wanted.
    """

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    past_lens: NDArray[np.int32]
    subsequence_begins: NDArray[np.int32]
    block_indices: NDArray[np.int32]
    block_indices_begins: NDArray[np.int32]
    max_context_len: NDArray[np.int32]
    sampled_token_indices: NDArray[np.int64]


class ScoredTokens(NamedTuple):
    """Prompt tokens `start` to `end` - 1 of a sequence, which this step's logits score."""

    sequence: Sequence
    start: int
    end: int


class SampledTokens(NamedTuple):
    """A sequence that catches up in this step, and how many of its draft tokens follow: it has
    one row of logits more than that."""

    sequence: Sequence
    num_drafts: int


class Batch(NamedTuple):
    """A step's inputs, and what the rows of its logits are for: first those of `sampled`, then
    one for each token of `scored`."""

    inputs: StepInputs
    sampled: list[SampledTokens]
    scored: list[ScoredTokens]


class StepLayout:
    """Lays the tokens of some sequences out for one inference.

    Plain `array`s are filled and wrapped without a copy: at a few tokens a sequence that is
    several times faster than concatenating numpy pieces.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._input_ids = array("q")
        self._position_ids = array("q")
        self._past_lens = array("i")
        self._subsequence_begins = array("i", (0,))
        self._block_indices = array("i")
        self._block_indices_begins = array("i", (0,))
        self._max_context_len = 0

    def add(
        self,
        token_ids: array[int],
        start: int,
        end: int,
        block_table: array[int],
        draft_token_ids: array[int] = _NO_TOKENS,
    ) -> int:
        """Appends a sequence's tokens `start` to `end` - 1, drafts following what there is in
        `token_ids`, and returns the index of the last one in the inputs."""
        input_ids = self._input_ids
        self._past_lens.append(start)
        if end - start == 1:
            input_ids.append(token_ids[start])
            self._position_ids.append(start)
        else:
            input_ids.extend(token_ids[start:end])
            if end > len(token_ids):
                input_ids.extend(draft_token_ids[: end - len(token_ids)])
            self._position_ids.extend(range(start, end))
        self._subsequence_begins.append(len(input_ids))
        num_blocks = -(-end // self._block_size)
        self._block_indices.extend(
            block_table if len(block_table) == num_blocks else block_table[:num_blocks]
        )
        self._block_indices_begins.append(len(self._block_indices))
        if end > self._max_context_len:
            self._max_context_len = end
        return len(input_ids) - 1

    def finish(self, sampled_token_indices: array[int]) -> StepInputs:
        return StepInputs(
            input_ids=np.frombuffer(self._input_ids, np.int64),
            position_ids=np.frombuffer(self._position_ids, np.int64),
            past_lens=np.frombuffer(self._past_lens, np.int32),
            subsequence_begins=np.frombuffer(self._subsequence_begins, np.int32),
            block_indices=np.frombuffer(self._block_indices, np.int32),
            block_indices_begins=np.frombuffer(self._block_indices_begins, np.int32),
            max_context_len=np.array(self._max_context_len, np.int32),
            sampled_token_indices=np.frombuffer(sampled_token_indices, np.int64)
            if sampled_token_indices
            else np.empty(0, np.int64),
        )


def build_batch(chunks: list[Chunk], block_size: int) -> Batch:
    layout = StepLayout(block_size)
    sampled_token_indices = array("q")
    sampled: list[SampledTokens] = []
    scored_token_indices = array("q")
    scored: list[ScoredTokens] = []
    for sequence, num_tokens in chunks:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        last = layout.add(
            sequence.token_ids, start, end, sequence.block_table, sequence.draft_token_ids
        )
        num_drafts = end - len(sequence.token_ids)
        if num_drafts >= 0:
            if num_drafts == 0:
                sampled_token_indices.append(last)
            else:
                sampled_token_indices.extend(range(last - num_drafts, last + 1))
            sampled.append(SampledTokens(sequence, num_drafts))
        if sequence.scores_prompt:
            tokens = _scored_tokens(sequence, start, end)
            first_index = last - num_tokens + tokens.start - start
            scored_token_indices.extend(range(first_index, first_index + tokens.end - tokens.start))
            scored.append(tokens)
    sampled_token_indices.extend(scored_token_indices)
    return Batch(layout.finish(sampled_token_indices), sampled, scored)


def _scored_tokens(sequence: Sequence, start: int, end: int) -> ScoredTokens:
    """The logits at position p score the token at p + 1. Tokens scored before a preemption are
    not scored again."""
    first = max(start + 1, len(sequence.prompt_logprobs))
    last = min(end, sequence.num_prompt_tokens - 1)
    return ScoredTokens(sequence, first, max(first, last + 1))
