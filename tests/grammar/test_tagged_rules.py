"""Tags in grammars: special tokens in one vocabulary, text in another."""

from __future__ import annotations

import json

import pytest

from fastovms.grammar.tagged_rules import resolve_tags
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

CALLS = r"""%tag t "<call>"
%tag e "</p>"
%text v e /[ab\n]*/
start: (until_t v "!")* without_t"""

THOUGHT = r"""%tag b "<think>"
%tag e "</think>"
start: (b until_e /\n*/)? @answer"""


@pytest.mark.parametrize("specials", [(), ("<call>",), ("<call>", "</p>", "<other>")], ids=str)
@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("", True),
        ("plain <c", True),
        ("plain <other> text", True),
        ("so <call>ab\n</p>! and <call></p>! done", True),
        ("<call>ax", False),
        ("<call>a</p>?", False),
        ("so <other><call>x", False),
        ("<call>a", None),
    ],
)
def test_what_follows_a_tag_is_constrained(
    specials: tuple[str, ...], text: str, is_accepted: bool | None
) -> None:
    grammar = Grammar(GrammarKind.TAGGED_RULES, CALLS)
    assert vocabulary(*specials).accepts(grammar, text) is is_accepted


@pytest.mark.parametrize("specials", [(), ("<think>", "</think>")], ids=str)
@pytest.mark.parametrize(
    ("kind", "source", "answer"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "object"}', '{"a":1}'),
        (GrammarKind.JSON_OBJECT, "", '{"a":1}'),
        (GrammarKind.REGEX, "a+", "aa"),
        (GrammarKind.CHOICE, '["x", "y"]', "y"),
        (GrammarKind.GRAMMAR, 'start: "q" R\nR: /s+/', "qss"),
        (GrammarKind.TAGGED_RULES, '%tag t "<c>"\nstart: t', "<c>"),
    ],
)
def test_an_answer_follows_reasoning(
    kind: GrammarKind, source: str, answer: str, specials: tuple[str, ...]
) -> None:
    accepts = vocabulary(*specials).accepts
    grammar = Grammar(kind, source, frame=THOUGHT)
    assert accepts(grammar, answer) is True
    assert accepts(grammar, f"<think>\nwhy {answer}?\n</think>\n\n{answer}") is True
    assert accepts(grammar, f"<think>why{answer}") is None
    assert accepts(grammar, "<think>why</think>?") is False


def test_json_in_rules_is_left_alone() -> None:
    line = f"start: %json {json.dumps({'description': '%tag x <y> // # ü'})}"
    assert resolve_tags(line, {}, []).splitlines()[0] == line


def test_frames_are_part_of_a_grammar() -> None:
    accepts = vocabulary().accepts
    assert accepts(Grammar(GrammarKind.REGEX, "a+"), "<think>") is False
    assert accepts(Grammar(GrammarKind.REGEX, "a+", frame=THOUGHT), "<think>") is None
