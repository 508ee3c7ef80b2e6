"""What clients are told of their grammars."""

from __future__ import annotations

import pytest

from fastovms.grammar.grammar_faults import UnusableGrammar, dead_end, first_line
from fastovms.params import Grammar, GrammarKind

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
def test_the_first_line_says_it_or_what_stands_below_a_drawing(said: str, told: str) -> None:
    assert first_line(said) == told


def test_faults_name_the_field() -> None:
    fault = UnusableGrammar(GRAMMAR, "no")
    assert (fault.message, fault.param) == ("the JSON schema cannot be used: no", "response_format")
    refusal = dead_end(GRAMMAR, "no")
    assert refusal.message == "response_format: the JSON schema cannot go on: no"
    assert refusal.param == "response_format"
