"""Tests of `fastovms/grammar/state.py`."""

from __future__ import annotations

import contextlib
import random
from array import array
from copy import copy
from itertools import count
from typing import cast

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from fastovms.engine.processors import logits_processors
from fastovms.engine.sampler import Sampler
from fastovms.engine.scheduler import SampledTokens
from fastovms.engine.sequence import DrawState, Sequence
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.grammar.state import (
    FREE_SECONDS,
    MAX_FORCED_TOKENS,
    MAX_SECONDS,
    CompiledGrammar,
    GrammarCache,
    GrammarState,
    GrammarTimeBudget,
    first_line,
)
from fastovms.params import GenerationRequest, Grammar, GrammarKind, SamplingParams
from tests.grammar.byte_level import EOS
from tests.paths import BYTE_LEVEL_TOKENIZER

# Error messages about grammars.


GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, "{}", param="response_format")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "unknown error"),
        (" first \nsecond\n", "first "),
        (
            "at 1(8): regex parse error:\n    [a\n    ^\nerror: unclosed character class",
            "unclosed character class (at 1(8))",
        ),
        ("regex parse error:\n  (a\nerror: unclosed group", "unclosed group (invalid regex)"),
        ("regex parse error:\n  (a", "regex parse error:"),
    ],
)
def test_first_line_of_an_error_or_the_line_below_a_drawing_is_returned(
    said: str, told: str
) -> None:
    assert first_line(said) == told


# Limits of the engine's time that a grammar may take.


@pytest.mark.parametrize(
    ("seconds", "is_used_up"),
    [
        ([FREE_SECONDS * 0.9] * 10_000, False),  # most tokens are allowed
        ([MAX_SECONDS], False),
        ([MAX_SECONDS + 2 * FREE_SECONDS], True),
        ([MAX_SECONDS / 2 + 2 * FREE_SECONDS] * 2, True),
        ([-1.0, MAX_SECONDS + 2 * FREE_SECONDS], True),  # a clock that goes backwards adds nothing
    ],
)
def test_time_beyond_the_free_seconds_of_a_token_uses_up_the_budget(
    seconds: list[float], is_used_up: bool
) -> None:
    now = 0.0
    budget = GrammarTimeBudget(lambda: now)
    for taken in seconds:
        assert not budget.is_used_up
        with budget:
            now += taken
    assert budget.is_used_up is is_used_up


def test_time_of_a_token_that_fails_counts() -> None:
    now = 0.0
    budget = GrammarTimeBudget(lambda: now)
    with contextlib.suppress(ValueError), budget:
        now += MAX_SECONDS + 1
        raise ValueError
    assert budget.is_used_up


# Samples that follow their grammars.


def test_dead_end_is_reported_in_one_line(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    source = 'start: /[a-z]{20}/ NOTHING\nNOTHING: "c" & "d"'
    state = compiler.start(Grammar(GrammarKind.GRAMMAR, source), 0)
    state(np.zeros(300, np.float32), array("q", tokenizer.tokenize_str("ab" * 10)))
    assert state.error == "NoExtensionBias"


@pytest.mark.parametrize(
    ("said", "banned", "error"),
    [
        ("", "y", "other fields of the request rule out every token that may follow"),
        ("", "n", ""),
        ("y", "", ""),  # complete: it may end, though `min_tokens` requires more
    ],
)
def test_request_that_bars_every_token_of_its_grammar_ends(
    compiler: GrammarCompiler, tokenizer: LLTokenizer, said: str, banned: str, error: str
) -> None:
    params = SamplingParams(
        temperature=0,
        min_tokens=5,
        eos_token_ids=frozenset({EOS}),
        bad_words_token_ids=tuple((i,) for i in tokenizer.tokenize_str(banned)),
    )
    state = compiler.start(Grammar(GrammarKind.REGEX, "y" if banned == "y" else "[yn]"), 1)
    sequence = Sequence(
        0,
        GenerationRequest("a", [1], params),
        0,
        token_limit=9,
        drawing=DrawState(0, logits_processors(params, array("q", [1])), state),
    )
    for token_id in tokenizer.tokenize_str(said):
        sequence.append(token_id)
    logits = np.zeros((1, tokenizer.vocab_size), np.float32)
    (token_id,) = Sampler(1).draw([SampledTokens(sequence, 0)], logits)
    assert (token_id == EOS) is (bool(error) or bool(said))
    assert state.error == error


def test_late_text_without_a_choice_is_limited(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    state = compiler.start(Grammar(GrammarKind.REGEX, "[a-z]{20}b{100000}"), 0)
    state.forced_tokens(array("q", tokenizer.tokenize_str("az" * 10)))
    assert state.error.startswith(f"more than {MAX_FORCED_TOKENS} tokens would follow")
    assert copy(state).error == state.error


@pytest.mark.slow
def test_too_ambiguous_grammar_ends_with_an_error(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    sums = " | ".join(" ".join(["e"] * n) for n in range(2, 12))
    state = compiler.start(Grammar(GrammarKind.GRAMMAR, f'start: e\ne: {sums} | /[a-z]/ | ""'), 0)
    token_ids = array("q")
    while not state.error and len(token_ids) < 100:
        token_ids.extend(tokenizer.tokenize_str("a"))
        state(np.zeros(tokenizer.vocab_size, np.float32), token_ids)
    assert "Too many items" in state.error


def test_samples_of_a_request_share_one_time_budget(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    seconds = count()
    time_budget = GrammarTimeBudget(lambda: next(seconds))
    grammar = Grammar(GrammarKind.REGEX, "a*")
    first, second = (compiler.start(grammar, 0, time_budget) for _ in range(2))
    other = compiler.start(grammar, 0)
    logits, token_ids = np.zeros(tokenizer.vocab_size, np.float32), array("q")
    for _ in range(2):
        first(logits, token_ids)
        second.forced_tokens(token_ids)
    assert not first.error
    for _ in range(2):
        copy(first)(logits, token_ids)
    assert first.error == second.error == "it takes too long"
    assert second.forced_tokens(token_ids) == []
    assert not other.error


# How far guesses advance in a grammar, while the state of the sample itself does not change.


TEXT = BYTE_LEVEL_TOKENIZER.read_text()
TOKENIZER = LLTokenizer(TEXT, eos_token=0)
NOTHING = array("q")


def tokens(text: str) -> list[int]:
    return list(TOKENIZER.tokenize_str(text))


def start(pattern: str, time_budget: GrammarTimeBudget | None = None) -> GrammarState:
    compiler = GrammarCompiler(TEXT, vocab_size=512, eos_token_ids=[0])
    return compiler.start(Grammar(GrammarKind.REGEX, pattern), 0, time_budget)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("[0-9]{3}-[0-9]{2}", "777-77", 6),
        ("[0-9]{3}-[0-9]{2}", "777777", 3),
        ("[0-9]{3}-[0-9]{2}", "-", 0),
        ("[0-9]{3}", "7777", 3),
        ("[0-9]{3}", "", 0),
    ],
)
def test_scout_follows_a_guess_to_the_first_barred_token(
    pattern: str, text: str, expected: int
) -> None:
    state = start(pattern)
    guess = [token for character in text for token in tokens(character)]
    for _ in range(2):  # the state of the sample does not change
        scout = state.scout(NOTHING)
        assert scout is not None
        assert scout.follow(guess) == expected
    assert not state.error


def test_forced_tokens_continue_from_the_position_of_the_scout() -> None:
    scout = start("[0-9]zzz").scout(NOTHING)
    assert scout is not None
    assert scout.forced_tokens() == []
    assert scout.follow(tokens("7")) == 1
    assert TOKENIZER.decode_str(scout.forced_tokens()) == "zzz"


def test_scout_ends_with_the_text_or_the_time_budget() -> None:
    state = start("7")
    assert state.scout(array("q", [*tokens("7"), 0])) is None
    now = 0.0
    budget = GrammarTimeBudget(lambda: now)
    state = start("[0-9]zzz", budget)
    scout = state.scout(NOTHING)
    assert scout is not None
    with budget:
        now += 2 * MAX_SECONDS
    assert (scout.follow(tokens("7")), scout.forced_tokens()) == (0, [])
    assert state.scout(NOTHING) is None


# Compiled grammars are cached within a number of bytes, which they increase as they are used.


MATCHER = cast(LLMatcher, None)
MB = 2**20


def grammar(name: object) -> Grammar:
    return Grammar(GrammarKind.REGEX, str(name))


def test_most_recently_used_grammars_are_kept() -> None:
    cache = GrammarCache(10 * MB)
    for name in "abc":
        cache.put(grammar(name), CompiledGrammar(MATCHER, 3 * MB))
    assert cache.get(grammar("a")) is not None
    cache.put(grammar("d"), CompiledGrammar(MATCHER, 3 * MB))
    assert [name for name in "abcd" if cache.get(grammar(name))] == ["a", "c", "d"]
    cache.put(grammar("too large"), CompiledGrammar(MATCHER, 11 * MB))
    assert len(cache) == 0


def test_grammar_that_has_grown_is_evicted() -> None:
    cache = GrammarCache(10 * MB)
    compiled = CompiledGrammar(MATCHER, MB)
    cache.put(grammar("a"), compiled)
    compiled.num_followed = 2000
    assert cache.get(grammar("a")) is compiled
    compiled.num_followed = 3000
    assert cache.get(grammar("a")) is None


@pytest.mark.parametrize("seed", range(10))
def test_cache_never_holds_more_than_its_bytes(seed: int) -> None:
    rng = random.Random(seed)
    cache = GrammarCache(20 * MB)
    for _ in range(300):
        name = grammar(rng.randrange(30))
        compiled = cache.get(name)
        if compiled is None:
            cache.put(name, CompiledGrammar(MATCHER, rng.randrange(1, 8 * MB)))
        else:
            compiled.num_followed += rng.randrange(2000)
        cache.check()
