"""Tests of sequences: their ends, and the data that a copy shares."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from fastovms.engine.sequence import DrawState, Sequence
from fastovms.params import FinishReason, GenerationRequest, RepetitionDetection, SamplingParams


class Grammar:
    error = ""

    def __call__(self, logits: Any, token_ids: array[int]) -> None: ...

    def give_up(self) -> None: ...

    def forced_tokens(self, token_ids: array[int]) -> list[int]:
        return []


def sequence(
    *, limit: int = 9, index: int = 0, grammar: Grammar | None = None, **params: Any
) -> Sequence:
    asked = SamplingParams(eos_token_ids=frozenset({0}), stop_token_ids=frozenset({1}), **params)
    request = GenerationRequest("r", [5, 6], asked)
    return Sequence(
        0, request, index, token_limit=limit, drawing=DrawState(0, (Grammar(),), grammar)
    )


@pytest.mark.parametrize(
    ("made", "token_id", "reason"),
    [
        (sequence(), 7, None),
        (sequence(), 0, FinishReason.STOP),
        (sequence(), 1, FinishReason.STOP),
        (sequence(ignore_eos=True), 0, None),
        (sequence(ignore_eos=True), 1, FinishReason.STOP),
        (sequence(ignore_eos=True, grammar=Grammar()), 0, FinishReason.STOP),
        (sequence(limit=3), 7, FinishReason.LENGTH),
        (sequence(limit=3), 0, FinishReason.STOP),
    ],
)
def test_append_returns_the_finish_reason_of_a_token(
    made: Sequence, token_id: int, reason: FinishReason | None
) -> None:
    assert made.append(token_id) is reason
    assert list(made.token_ids) == [5, 6, token_id]
    assert (made.num_generated_tokens, made.num_uncomputed_tokens) == (1, 3)


@pytest.mark.parametrize(
    ("asked", "index", "num_scored", "scores"),
    [(None, 0, 1, False), (0, 0, 1, True), (0, 1, 1, False), (0, 0, 2, False)],
)
def test_the_first_sample_scores_the_prompt(
    asked: int | None, index: int, num_scored: int, scores: bool
) -> None:
    made = sequence(prompt_logprobs=asked, index=index)
    made.prompt_logprobs = [None] * num_scored
    assert made.scores_prompt is scores


def test_fork_shares_no_mutable_state_with_the_original() -> None:
    original = sequence(grammar=Grammar())
    original.block_table.append(3)
    original.draft_token_ids.append(4)
    child = original.fork(7)
    child.append(8)
    assert (child.seq_id, child.request_id) == (7, "r")
    assert list(original.token_ids) == [5, 6]
    assert list(child.block_table) == list(child.draft_token_ids) == []
    assert len(child.processors) == len(original.processors) == 2
    assert not set(map(id, child.processors)) & set(map(id, original.processors))
    assert child.processors[-1] is child.grammar is not original.grammar


@pytest.mark.parametrize(
    ("numbers", "text", "length"),
    [
        ((1, 1, 3), b"abccc", 5),
        ((1, 1, 4), b"abcccd", None),
        ((3, 1, 2), b"xabcabc", 7),
        ((2, 1, 2), b"xabcabc", None),
        ((3, 2, 3), b"aaaaaaa", 6),
        ((5, 2, 3), b"ababab", 6),
        ((5, 5, 2), b"abcdeabcde", 10),
        ((1000, 1, 2), b"abcdefg", None),
    ],
)
def test_a_sample_that_repeats_itself_ends_as_in_vllm(
    numbers: tuple[int, int, int], text: bytes, length: int | None
) -> None:
    params = SamplingParams(repetition_detection=RepetitionDetection(*numbers))
    # The prompt does not count.
    made = Sequence(1, GenerationRequest("r", list(text), params), 0, token_limit=10_000)
    ended = [n for n, token in enumerate(text, 1) if made.append(token)]
    assert ended[:1] == ([] if length is None else [length])


def test_other_ends_come_before_repetition_which_min_tokens_delay() -> None:
    made = sequence(repetition_detection=RepetitionDetection(1, 1, 2), min_tokens=3)
    assert [made.append(5), made.append(5)] == [None, None]
    assert made.append(5) is FinishReason.REPETITION
    assert [made.append(1), made.append(1)] == [FinishReason.STOP] * 2
