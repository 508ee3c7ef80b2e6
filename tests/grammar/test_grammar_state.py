"""Samples that follow their grammars."""

from __future__ import annotations

import json
from array import array
from copy import copy
from itertools import count

import numpy as np
import pytest
from llguidance import LLTokenizer

from fastovms.engine.sampling.logits_processors import logits_processors
from fastovms.engine.sampling.sampler import Sampler
from fastovms.engine.scheduling.batch import SampledTokens
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.grammar.grammar_state import MAX_FORCED_TOKENS, GrammarState
from fastovms.grammar.grammar_time_budget import GrammarTimeBudget
from fastovms.params import GenerationRequest, Grammar, GrammarKind, SamplingParams
from tests.grammar.byte_level import EOS, PROMPT, SCHEMA


def test_forced_tokens_spell_the_only_continuation(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    state = compiler.start(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), len(PROMPT))
    forced = state.forced_tokens(array("q", PROMPT))
    assert tokenizer.decode_str(forced).startswith('{"name')


def test_samples_of_one_grammar_are_independent(compiler: GrammarCompiler) -> None:
    grammar = Grammar(GrammarKind.CHOICE, '["ab", "cd"]')
    first, second = compiler.start(grammar, 0), compiler.start(grammar, 0)

    def possible(state: GrammarState, token_ids: array[int]) -> list[int]:
        logits = np.zeros(300, np.float32)
        state(logits, token_ids)
        return np.flatnonzero(np.isfinite(logits)).tolist()

    at_start = possible(first, array("q"))
    assert possible(first, array("q", at_start[:1])) != at_start
    assert possible(second, array("q")) == at_start


def test_a_dead_end_is_told_in_one_line(compiler: GrammarCompiler, tokenizer: LLTokenizer) -> None:
    source = 'start: /[a-z]{20}/ NOTHING\nNOTHING: "c" & "d"'
    state = compiler.start(Grammar(GrammarKind.GRAMMAR, source), 0)
    state(np.zeros(300, np.float32), array("q", tokenizer.tokenize_str("ab" * 10)))
    assert state.error == "NoExtensionBias"


@pytest.mark.parametrize(
    ("said", "banned", "error"),
    [
        ("", "y", "other fields of the request rule out every token that may follow"),
        ("", "n", ""),
        ("y", "", ""),  # complete: it may end, though `min_tokens` would have it go on
    ],
)
def test_a_request_that_leaves_a_grammar_no_way_on(
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
        processors=logits_processors(params, array("q", [1])),
        grammar=state,
    )
    for token_id in tokenizer.tokenize_str(said):
        sequence.append(token_id)
    logits = np.zeros((1, tokenizer.vocab_size), np.float32)
    (token_id,) = Sampler(1).draw([SampledTokens(sequence, 0)], logits)
    assert (token_id == EOS) is (bool(error) or bool(said))
    assert state.error == error


def test_text_without_a_choice_is_limited_where_it_comes_late(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    state = compiler.start(Grammar(GrammarKind.REGEX, "[a-z]{20}b{100000}"), 0)
    state.forced_tokens(array("q", tokenizer.tokenize_str("az" * 10)))
    assert state.error.startswith(f"more than {MAX_FORCED_TOKENS} tokens would follow")
    assert copy(state).error == state.error


def test_a_grammar_that_is_too_ambiguous_ends(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    sums = " | ".join(" ".join(["e"] * n) for n in range(2, 12))
    state = compiler.start(Grammar(GrammarKind.GRAMMAR, f'start: e\ne: {sums} | /[a-z]/ | ""'), 0)
    token_ids = array("q")
    while not state.error and len(token_ids) < 100:
        token_ids.extend(tokenizer.tokenize_str("a"))
        state(np.zeros(tokenizer.vocab_size, np.float32), token_ids)
    assert "Too many items" in state.error


def test_the_samples_of_a_request_share_what_its_grammar_may_take(
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
