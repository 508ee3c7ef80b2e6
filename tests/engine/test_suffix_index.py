"""Tests of `fastovms/parts/drafts/suffix_index.py`."""

from __future__ import annotations

import random
from array import array
from typing import NamedTuple

import numpy as np
import pytest

from fastovms.parts.drafts.suffix_index import (
    LEAST_CHANCE,
    IndexedText,
    SuffixFunctions,
    SuffixIndex,
)
from fastovms.parts.drafts.suffix_layout import MAX_CANDIDATES, MAX_MATCH

# The availability of the suffix index's kernels, and the behaviour before it.


TEXT = array("q", [1, 2, 3, 4, 1, 2])


def guess(functions: SuffixFunctions) -> list[int]:
    index = SuffixIndex(100, functions)
    text = index.new_text(None)
    index.extend(text, TEXT, 4)
    found = index.guess(text, TEXT, 2, least=0.0)
    index.learn(text, found, array("q", [3]))
    index.check()
    return found.token_ids.tolist()


def test_first_use_compiles_kernels_that_were_not_requested() -> None:
    assert guess(SuffixFunctions()) == [3, 4]


def test_lookup_finds_no_match_until_deferred_kernels_are_loaded() -> None:
    functions = SuffixFunctions()
    functions.defer()
    assert guess(functions) == []
    functions.try_to_load()
    assert guess(functions) == [3, 4]


def test_lookup_is_off_when_kernels_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    functions = SuffixFunctions()

    def fail() -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(functions, "load", fail)
    functions.defer()
    functions.try_to_load()
    assert guess(functions) == []
    assert "prompt lookup is off" in caplog.text


SUFFIX_INDEX_TEXT = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]


def add(index: SuffixIndex, token_ids: list[int], space: object = None) -> IndexedText:
    text = index.new_text(space)  # type: ignore[arg-type]
    index.extend(text, array("q", token_ids), 0)
    return text


def suffix_index_guess(
    index: SuffixIndex, text: IndexedText, context: list[int], count: int
) -> list[int]:
    return index.guess(text, array("q", context), count, least=0.0).token_ids.tolist()


@pytest.mark.parametrize(
    ("token_ids", "max_match", "count", "expected"),
    [
        (SUFFIX_INDEX_TEXT, 8, 5, [4, 5, 6, 9, 1]),
        (SUFFIX_INDEX_TEXT, 8, 2, [4, 5]),
        ([*SUFFIX_INDEX_TEXT, 7, *SUFFIX_INDEX_TEXT], 8, 2, [7, 1]),
        ([1, 2, 7, 1, 2, 8, 1, 2], 8, 1, [8]),  # of two matches with the same length, the last one
        ([1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2], 8, 1, [7]),  # the majority
        ([9, 1, 2, 7, 1, 2, 8, 3, 1, 2, 8, 9, 1, 2], 8, 1, [7]),  # the longest match
        ([9, 1, 2, 7, 1, 2, 8, 3, 1, 2, 8, 9, 1, 2], 2, 1, [8]),
        ([1, 2, 3], 8, 3, []),
        ([], 8, 3, []),
        ([2, 3, 9, 3], 1, 3, [9, 3, 9]),
        ([5, 5, 5, 5], 8, 5, [5, 5, 5, 5, 5]),  # repeats
    ],
)
def test_suffix_index_guesses_what_followed(
    token_ids: list[int], max_match: int, count: int, expected: list[int]
) -> None:
    index = SuffixIndex(100)
    text = add(index, token_ids)
    assert suffix_index_guess(index, text, token_ids[-max_match:], count) == expected


def test_texts_are_found_only_within_their_tenant_and_salt() -> None:
    index = SuffixIndex(1000)
    secret = [*range(50, 80)]
    spaces = [("alice", b""), ("bob", b""), ("alice", b"salt"), None, ("alice", b"")]
    add(index, secret, spaces[0])
    found = []
    for space in spaces[1:]:
        context = secret[:10]
        text = add(index, context, space)
        found.append(suffix_index_guess(index, text, context, 5))
    assert found == [[], [], [], secret[10:15]]


def test_forgotten_space_is_not_reused_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastovms.parts.drafts.suffix_index._MAX_SPACES", 2)
    index = SuffixIndex(1000)
    add(index, SUFFIX_INDEX_TEXT, "first")
    for other in ("second", "third", "first"):
        text = add(index, SUFFIX_INDEX_TEXT[:3], other)
        assert suffix_index_guess(index, text, SUFFIX_INDEX_TEXT[:3], 2) == []


def test_a_prompt_that_begins_as_another_one_takes_no_more_room() -> None:
    index = SuffixIndex(10_000)
    rng = random.Random(0)
    prompt = [rng.randrange(50) for _ in range(300)]
    ends = []
    for turn in range(4):
        text = index.new_text("space")
        token_ids = array("q", [*prompt, *[60 + turn] * 5])
        index.extend(text, token_ids, 300)
        ends.append(index._end)
        index.check()
    assert ends == [306, 311, 316, 321], "what is generated counts each time"


def test_positions_restart_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastovms.parts.drafts.suffix_index._MAX_POSITION", 250)
    index = SuffixIndex(100)
    text = index.new_text(None)
    token_ids = array("q")
    for length in range(1000):
        token_ids.append(length % 7)
        index.extend(text, token_ids, 0)
        assert index._end <= 250
    index.check()
    assert suffix_index_guess(index, text, token_ids[-MAX_MATCH:].tolist(), 3) == [6, 0, 1]


class Expected(NamedTuple):
    tokens: set[int]
    num_longest: int


def expected_guess(texts: list[list[int]], context: list[int]) -> Expected:
    """Returns the possible next tokens by the definition, with a search of all positions."""
    longest, found = 0, []
    for text in texts:
        for end in range(1, len(text)):
            length = 0
            while length < min(end, len(context), MAX_MATCH) and (
                text[end - 1 - length] == context[-1 - length]
            ):
                length += 1
            if length > longest:
                longest, found = length, []
            if length == longest and longest:
                found.append(text[end])
    most = max(map(found.count, found), default=0)
    return Expected({token for token in found if found.count(token) == most}, len(found))


@pytest.mark.parametrize("seed", range(3))
def test_random_texts_are_guessed_as_a_search_of_all_of_them_would(seed: int) -> None:
    rng = random.Random(seed)
    index = SuffixIndex(2000)
    texts: dict[str, list[array[int]]] = {"a": [], "b": []}
    num_guesses = 0
    growing: list[tuple[str, IndexedText, array[int]]] = []
    for _ in range(150):
        if len(growing) < 4 or rng.random() < 0.1:
            space = rng.choice("ab")
            growing.append((space, index.new_text(space), array("q")))
            texts[space].append(growing[-1][2])
        space, text, token_ids = rng.choice(growing[-4:])
        # With so many different tokens that fewer positions match than are examined.
        token_ids.extend(rng.randrange(40) for _ in range(rng.randrange(4)))
        index.extend(text, token_ids, 0)
        context = token_ids[-MAX_MATCH:].tolist()
        found = suffix_index_guess(index, text, context, 1)
        expected = expected_guess([other.tolist() for other in texts[space]], context)
        assert expected.num_longest < MAX_CANDIDATES
        assert set(found) <= expected.tokens
        assert bool(found) == bool(expected.tokens)
        num_guesses += bool(found)
    index.check()
    assert num_guesses > 20


@pytest.mark.parametrize("seed", range(3))
def test_a_small_ring_forgets_without_a_trace(seed: int) -> None:
    rng = random.Random(seed)
    index = SuffixIndex(rng.choice([1, 7, 40]))
    texts = [(index.new_text(rng.choice([None, "a"])), array("q"), rng.randrange(9)) for _ in "abc"]
    for _ in range(300):
        text, token_ids, num_prompt_tokens = rng.choice(texts)
        token_ids.extend(rng.randrange(4) for _ in range(rng.randrange(1, 4)))
        index.extend(text, token_ids, min(num_prompt_tokens, len(token_ids)))
        index.check()
        assert set(suffix_index_guess(index, text, token_ids.tolist(), 9)) <= set(range(4))


def test_odds_follow_what_is_observed() -> None:
    index = SuffixIndex(1000)
    text = add(index, SUFFIX_INDEX_TEXT)
    context = array("q", SUFFIX_INDEX_TEXT[-8:])
    before = index.guess(text, context, 4, least=0.0)
    for _ in range(20):
        index.learn(text, before, array("q", [4, 5, 0, 0]))
    after = index.guess(text, context, 4, least=0.0)
    assert after.chances[0] > 0.7 > before.chances[0]
    assert np.all(np.diff(after.chances) < 0)


def test_odds_are_those_of_a_text_and_of_its_space() -> None:
    """The lengths of one tenant's drafts reveal nothing to another tenant."""
    index = SuffixIndex(1000)
    context = array("q", SUFFIX_INDEX_TEXT[-8:])

    def first_chance(space: str | None) -> float:
        text = add(index, SUFFIX_INDEX_TEXT, space)
        return float(index.guess(text, context, 4).chances[0])

    before = first_chance("alice")
    text = add(index, SUFFIX_INDEX_TEXT, "alice")
    for _ in range(20):
        index.learn(text, index.guess(text, context, 4), array("q", [4, 5, 0, 0]))
    assert first_chance("alice") > before
    assert first_chance("bob") == first_chance(None) == before


def test_unlikely_draft_is_tried_with_one_token() -> None:
    index = SuffixIndex(1000)
    text = add(index, SUFFIX_INDEX_TEXT)
    context = array("q", SUFFIX_INDEX_TEXT[-1:])
    for _ in range(50):
        index.learn(text, index.guess(text, context, 4), array("q", [0]))
    hopeless = index.guess(text, context, 4)
    assert len(hopeless.token_ids) == 1
    assert hopeless.chances[0] < LEAST_CHANCE


def test_a_text_goes_on_near_the_place_that_it_has_followed() -> None:
    """After a token that differs, although newer positions match as far."""
    index = SuffixIndex(1000)
    followed = [20, 21, 22, 23, 24, 7, 30, 31, 32]
    text = add(index, [*followed, *[7, 40] * 5, 20, 21, 22, 23, 24])
    token_ids = array("q", [*followed, *[7, 40] * 5, 20, 21, 22, 23, 24])
    assert index.guess(text, token_ids, 2, least=0.0).token_ids.tolist() == [7, 30]
    token_ids.extend([99, 7])
    index.extend(text, token_ids, 0)
    assert index.guess(text, token_ids, 2, least=0.0).token_ids.tolist() == [30, 31]
