"""How far guesses go along a grammar, while the sample itself stays where it is."""

from __future__ import annotations

from array import array

import pytest
from llguidance import LLTokenizer

from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.grammar.grammar_state import GrammarState
from fastovms.grammar.grammar_time_budget import MAX_SECONDS, GrammarTimeBudget
from fastovms.params import Grammar, GrammarKind
from tests.paths import BYTE_LEVEL_TOKENIZER

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
def test_a_guess_goes_on_to_the_first_token_that_is_barred(
    pattern: str, text: str, expected: int
) -> None:
    state = start(pattern)
    guess = [token for character in text for token in tokens(character)]
    for _ in range(2):  # the sample itself does not move
        scout = state.scout(NOTHING)
        assert scout is not None
        assert scout.follow(guess) == expected
    assert not state.error


def test_what_is_forced_is_told_from_where_the_guess_has_come() -> None:
    scout = start("[0-9]zzz").scout(NOTHING)
    assert scout is not None
    assert scout.forced_tokens() == []
    assert scout.follow(tokens("7")) == 1
    assert TOKENIZER.decode_str(scout.forced_tokens()) == "zzz"


def test_nothing_is_tried_at_the_end_of_the_text_or_of_the_time() -> None:
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
