from __future__ import annotations

from array import array

import pytest

from fastovms.engine.drafting.prompt_lookup import PromptLookup
from fastovms.params import SamplingParams

TEXT = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]


def propose(token_ids: list[int], **params: int) -> list[int]:
    return PromptLookup(SamplingParams(**params)).propose(array("q", token_ids), 1).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("token_ids", "params", "draft"),
    [
        (TEXT, {}, [4, 5, 6, 9, 1]),
        (TEXT, {"num_assistant_tokens": 2}, [4, 5]),
        ([*TEXT, 7, *TEXT], {"num_assistant_tokens": 2}, [4, 5]),
        ([1, 2, 7, 1, 2, 8, 1, 2], {"num_assistant_tokens": 1}, [8]),  # the last occurrence
        ([1, 2, 3], {}, []),
        ([], {}, []),
        ([2, 3, 4, 9, 3, 4], {}, []),  # automatic drafts want a longer match
        ([2, 3, 4, 9, 3, 4], {"num_assistant_tokens": 3}, [9, 3, 4]),
        ([2, 3, 9, 3], {"num_assistant_tokens": 3, "max_ngram_size": 1}, [9, 3, 9]),
        ([5, 5, 5, 5], {}, [5, 5, 5, 5, 5]),  # goes round
        # The bytes of 256 after those of 1 hold a 1 that is not on a token's edge.
        ([1, 256, 1 << 56, 8, 1, 256, 1 << 56], {"num_assistant_tokens": 1}, [8]),
        ([1 << 8, 7, 1, 7, 1 << 16, 7, 1], {"num_assistant_tokens": 1, "max_ngram_size": 1}, [7]),
    ],
)
def test_proposes_what_followed_last_time(
    token_ids: list[int], params: dict[str, int], draft: list[int]
) -> None:
    assert propose(token_ids, **params) == draft


def test_misses_pause_it_and_hits_lengthen_the_draft() -> None:
    lookup = PromptLookup(SamplingParams())
    text = array("q", TEXT * 50)
    for _ in range(3):
        draft = lookup.propose(text, 1)
        lookup.policy.learn(len(draft), len(draft), len(text))
    assert len(lookup.propose(text, 1)) == 8
    lookup.policy.learn(8, 0, len(text))
    assert not lookup.propose(text, 1)
    longer = text + array("q", TEXT)
    assert len(lookup.propose(longer, 1)) == 6


def test_a_full_step_asks_for_better_odds() -> None:
    lookup = PromptLookup(SamplingParams())
    assert lookup.propose(array("q", TEXT), 1)
    assert not lookup.propose(array("q", TEXT), 100)


def play(lookup: PromptLookup, token_ids: list[int], num_running: int) -> list[int]:
    """The text comes token by token, whatever is drafted; returns at which lengths a draft is."""
    drafted_at = []
    for length in range(1, len(token_ids) + 1):
        if lookup.propose(array("q", token_ids[:length]), num_running):
            drafted_at.append(length)
    return drafted_at


def test_in_a_crowd_a_guess_is_proven_by_the_text_before_one_is_computed() -> None:
    repeated = [1, 2, 3, 4] * 8
    assert play(PromptLookup(SamplingParams()), repeated, 1)[0] == 7, "three tokens of a cycle"
    lookup = PromptLookup(SamplingParams())
    assert play(lookup, repeated, 30)[0] == 7 + 5, "when a guess of five is seen to be right"


def test_in_a_crowd_a_guess_that_is_wrong_costs_nothing_but_a_pause() -> None:
    broken = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 7, *range(20, 25), 1, 2, 3, 4, *range(30, 40)]
    lookup = PromptLookup(SamplingParams())
    assert play(lookup, broken, 30) == []
    assert not lookup.policy.is_proven


def test_after_a_wrong_draft_come_a_pause_of_eight_tokens_and_a_new_proof_of_four() -> None:
    lookup = PromptLookup(SamplingParams())
    play(lookup, [1, 2, 3, 4] * 3, 30)
    text = array("q", [1, 2, 3, 4] * 3)
    assert lookup.propose(text, 30).tolist() == [1, 2, 3, 4, 1, 2]
    lookup.policy.learn(6, 0, len(text))
    assert play(lookup, [1, 2, 3, 4] * 6, 30) == [12 + 8 + 4]


def test_a_fixed_number_is_not_adapted() -> None:
    lookup = PromptLookup(SamplingParams(num_assistant_tokens=3))
    for _ in range(5):
        assert len(lookup.propose(array("q", TEXT), 200)) == 3
        lookup.policy.learn(3, 0, len(TEXT))
