"""A plan as the ragged batch that paged attention wants."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.scheduler import Chunk
from fastovms.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepInputs:
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


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's inputs, and what the rows of its logits are for: first those of `sampled`, then
    one for each token of `scored`."""

    inputs: StepInputs
    sampled: list[SampledTokens]
    scored: list[ScoredTokens]


def build_batch(chunks: list[Chunk], block_size: int) -> Batch:
    """Lays the chunks out for one inference.

    Plain `array`s are filled and wrapped without a copy: at a few tokens a sequence that is
    several times faster than concatenating numpy pieces.
    """
    input_ids = array("q")
    position_ids = array("q")
    past_lens = array("i")
    subsequence_begins = array("i", (0,))
    block_indices = array("i")
    block_indices_begins = array("i", (0,))
    sampled_token_indices = array("q")
    sampled: list[SampledTokens] = []
    scored_token_indices = array("q")
    scored: list[ScoredTokens] = []
    max_context_len = 0
    for sequence, num_tokens in chunks:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        token_ids = sequence.token_ids
        past_lens.append(start)
        if num_tokens == 1:
            input_ids.append(token_ids[start])
            position_ids.append(start)
        else:
            input_ids.extend(token_ids[start:end])
            if end > len(token_ids):
                input_ids.extend(sequence.draft_token_ids[: end - len(token_ids)])
            position_ids.extend(range(start, end))
        subsequence_begins.append(len(input_ids))
        block_indices.extend(sequence.block_table[: -(-end // block_size)])
        block_indices_begins.append(len(block_indices))
        max_context_len = max(max_context_len, end)
        num_drafts = end - len(token_ids)
        if num_drafts >= 0:
            last = len(input_ids) - 1
            sampled_token_indices.extend(range(last - num_drafts, last + 1))
            sampled.append(SampledTokens(sequence, num_drafts))
        if sequence.scores_prompt:
            tokens = _scored_tokens(sequence, start, end)
            first_index = subsequence_begins[-2] + tokens.start - 1 - start
            scored_token_indices.extend(range(first_index, first_index + tokens.end - tokens.start))
            scored.append(tokens)
    sampled_token_indices.extend(scored_token_indices)
    inputs = StepInputs(
        input_ids=np.frombuffer(input_ids, np.int64),
        position_ids=np.frombuffer(position_ids, np.int64),
        past_lens=np.frombuffer(past_lens, np.int32),
        subsequence_begins=np.frombuffer(subsequence_begins, np.int32),
        block_indices=np.frombuffer(block_indices, np.int32),
        block_indices_begins=np.frombuffer(block_indices_begins, np.int32),
        max_context_len=np.array(max_context_len, np.int32),
        sampled_token_indices=np.frombuffer(sampled_token_indices, np.int64)
        if sampled_token_indices
        else np.empty(0, np.int64),
    )
    return Batch(inputs, sampled, scored)


def _scored_tokens(sequence: Sequence, start: int, end: int) -> ScoredTokens:
    """The logits at position p score the token at p + 1. Tokens scored before a preemption are
    not scored again."""
    first = max(start + 1, len(sequence.prompt_logprobs))
    last = min(end, sequence.num_prompt_tokens - 1)
    return ScoredTokens(sequence, first, max(first, last + 1))
