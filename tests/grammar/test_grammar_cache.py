"""Compiled grammars are kept within a number of bytes, of which they take more as they are used."""

from __future__ import annotations

import random
from typing import cast

import pytest
from llguidance import LLMatcher

from fastovms.grammar.grammar_cache import CompiledGrammar, GrammarCache
from fastovms.params import Grammar, GrammarKind

MATCHER = cast(LLMatcher, None)
MB = 2**20


def grammar(name: object) -> Grammar:
    return Grammar(GrammarKind.REGEX, str(name))


def test_those_asked_for_last_are_kept() -> None:
    cache = GrammarCache(10 * MB)
    for name in "abc":
        cache.put(grammar(name), CompiledGrammar(MATCHER, 3 * MB))
    assert cache.get(grammar("a")) is not None
    cache.put(grammar("d"), CompiledGrammar(MATCHER, 3 * MB))
    assert [name for name in "abcd" if cache.get(grammar(name))] == ["a", "c", "d"]


def test_one_that_is_larger_than_all_may_be_is_not_kept() -> None:
    cache = GrammarCache(10 * MB)
    cache.put(grammar("a"), CompiledGrammar(MATCHER, 11 * MB))
    assert cache.get(grammar("a")) is None
    assert len(cache) == 0


def test_one_that_has_grown_is_forgotten() -> None:
    cache = GrammarCache(10 * MB)
    compiled = CompiledGrammar(MATCHER, MB)
    cache.put(grammar("a"), compiled)
    compiled.num_followed = 2000
    assert cache.get(grammar("a")) is compiled
    compiled.num_followed = 3000
    assert cache.get(grammar("a")) is None


@pytest.mark.parametrize("seed", range(10))
def test_the_bytes_are_never_more(seed: int) -> None:
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
