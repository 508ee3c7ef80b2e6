"""Lays a plan out for the model, and says what each row of its logits will be for."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.engine.scheduling.plan import Chunk
from fastovms.engine.scheduling.sequence import Sequence


class ScoredTokens(NamedTuple):
    """Prompt tokens `start` to `end` - 1 of a sequence, which this step's logits score."""

    sequence: Sequence
    start: int
    end: int


class SampledTokens(NamedTuple):
    """A sequence that catches up in this step, and how many draft tokens of it follow: it has one
    row of logits more than that."""

    sequence: Sequence
    num_drafts: int


class Batch(NamedTuple):
    """A step's inputs, and what the rows of its logits are for: first the rows of `sampled`, then
    one for each token of `scored`."""

    inputs: StepInputs
    sampled: list[SampledTokens]
    scored: list[ScoredTokens]


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
    """Returns which prompt tokens a chunk scores: the logits at position p score the token at p +
    1. Tokens scored before a preemption are not scored again."""
    first = max(start + 1, len(sequence.prompt_logprobs))
    last = min(end, sequence.num_prompt_tokens - 1)
    return ScoredTokens(sequence, first, max(first, last + 1))
