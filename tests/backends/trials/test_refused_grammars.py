"""Refusals are remembered, within bounds."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fastovms.backends.trials.refused_grammars import RefusedGrammars, digest_of
from fastovms.grammar.grammar_faults import UnusableGrammar
from fastovms.grammar_tree import Literal
from fastovms.params import Grammar, GrammarKind


def test_refusals_are_remembered_within_bounds() -> None:
    refused = RefusedGrammars()

    for number in range(300):
        grammar = Grammar(GrammarKind.REGEX, str(number))
        refused.check(grammar)
        with suppress(UnusableGrammar), refused.remembering(grammar):
            raise UnusableGrammar(grammar, "found now")
    with pytest.raises(UnusableGrammar, match="found now") as error:
        refused.check(Grammar(GrammarKind.REGEX, "299", "p"))
    assert error.value.param == "p"
    refused.check(Grammar(GrammarKind.REGEX, "0"))  # forgotten


def test_what_another_trial_may_see_otherwise_is_not_remembered() -> None:
    refused = RefusedGrammars()
    grammar = Grammar(GrammarKind.REGEX, "a")
    with suppress(UnusableGrammar), refused.remembering(grammar):
        raise UnusableGrammar(grammar, "by chance", is_certain=False)
    refused.check(grammar)


def test_grammars_are_told_from_one_another() -> None:
    grammars = [
        Grammar(GrammarKind.REGEX, "a"),
        Grammar(GrammarKind.CHOICE, "a"),
        Grammar(GrammarKind.REGEX, "b"),
        Grammar(GrammarKind.REGEX, "a", tree=Literal("a")),
        Grammar(GrammarKind.REGEX, "\ud800"),
    ]
    assert len({digest_of(grammar) for grammar in grammars}) == len(grammars)
    assert digest_of(grammars[0]) == digest_of(Grammar(GrammarKind.REGEX, "a", "another field"))
