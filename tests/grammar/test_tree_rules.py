"""Tags in grammars: special tokens in one vocabulary, text in another."""

from __future__ import annotations

import pytest

from fastovms.grammar.tree_rules import tree_rules
from fastovms.grammar_tree import (
    Answer,
    FirstTag,
    Json,
    Literal,
    Node,
    OtherText,
    Regex,
    Repeat,
    Separated,
    Tag,
    TextBefore,
    TriggeredTag,
    Until,
    in_order,
    one_of,
    optional,
    several,
)
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

CALLS = TriggeredTag("<call>", in_order(TextBefore("</p>", Regex(r"[ab\n]*")), "!"), once=False)
THOUGHT = in_order(optional(in_order(Tag("<think>"), Until("</think>"), Regex(r"\n*"))), Answer())


def calls(tree: Node) -> Grammar:
    return Grammar(GrammarKind.CALLS, "", "tools", tree)


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
    assert vocabulary(*specials).accepts(calls(CALLS), text) is is_accepted


@pytest.mark.parametrize("specials", [(), ("<think>", "</think>")], ids=str)
@pytest.mark.parametrize(
    ("kind", "source", "answer"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "object"}', '{"a":1}'),
        (GrammarKind.JSON_OBJECT, "", '{"a":1}'),
        (GrammarKind.REGEX, "a+", "aa"),
        (GrammarKind.CHOICE, '["x", "y"]', "y"),
        (GrammarKind.GRAMMAR, 'start: "q" R\nR: /s+/', "qss"),
    ],
)
def test_an_answer_follows_reasoning(
    kind: GrammarKind, source: str, answer: str, specials: tuple[str, ...]
) -> None:
    accepts = vocabulary(*specials).accepts
    grammar = Grammar(kind, source, tree=THOUGHT)
    assert accepts(grammar, answer) is True
    assert accepts(grammar, f"<think>\nwhy {answer}?\n</think>\n\n{answer}") is True
    assert accepts(grammar, f"<think>why{answer}") is None
    assert accepts(grammar, "<think>why</think>?") is False


AB = Regex("[ab]+")


@pytest.mark.parametrize("specials", [(), ("<t>",), ("<t>", "<u>")], ids=str)
@pytest.mark.parametrize(
    ("tree", "accepted", "refused"),
    [
        (in_order("a", "", "/b"), ["a/b"], ["", "a"]),
        (in_order(), [""], ["a"]),
        (one_of("ü", "\"\n", ""), ["ü", "\"\n", ""], ["u"]),
        (in_order(Tag("<t>"), "a", Tag("<t>")), ["<t>a<t>"], ["a", "<t>a"]),
        (in_order(Until("<t>"), "a"), ["<t>a", "b\n<t>a"], ["a", "<t>b"]),
        (Repeat(one_of("a", "b")), ["", "a", "aba"], ["c"]),
        (several(one_of("a", "b"), ", "), ["a", "a, b", "b, b, a"], ["", "ab", "a, "]),
        (several(Literal("a"), ""), ["a", "aaa"], [""]),
        (Separated(((Literal("a"), False), (Literal("b"), True), (Literal("c"), False)), ","),
         ["a,b,c", "a,b", "b,c", "b"], ["", "a", "c", "a,c", "b,a", "ab", ",b"]),
        (Separated(((Literal("a"), False), (Literal("b"), False)), ","),
         ["", "a", "b", "a,b"], [",", ",a", "b,a"]),
        (Separated((), ","), [""], [","]),
        (in_order(AB, "!"), ["abab!"], ["!", "<t>!"]),
        (Regex("[ab]+", also=(".{2}",), unlike=("ba", "aa")), ["ab", "bb"], ["a", "ba", "aa"]),
        (Regex("a/b\n\\/\\\\/\\\n[\n/]"), ["a/b\n/\\/\n/", "a/b\n/\\/\n\n"], ["a/b/"]),
        (TextBefore("<t>", AB, gap="\n"), ["a\n<t>", "ba\n<t>"], ["a<t>", "\n<t>", "a\n<t>a"]),
        (TriggeredTag("<t>", AB, once=True), ["", "x", "x<t>ab"], ["x<t>", "<t>a<t>a", "<t>ax"]),
        (OtherText(("ab", "[x"), ("<t>",)), ["", "xab", "[", "b\n"], ["ab", " [xa", "a<t>"]),
        (FirstTag((("<t>", Literal("a")), ("<u>", Literal("b"))), must_come=True),
         ["x<t>a", "<u>b", "x\n<u>b"], ["", "x", "<t>b", "<u>a", "<t>a<u>b"]),
        (FirstTag((("<t>", AB), ("<u>", Literal("c"))), must_come=False),
         ["", "x<t>ab", "<u>c", "<v>"], ["<t>c", "x<u>a", "<t>a<u>c"]),
        (in_order(Until("<t>a"), "b"), ["x<t>ab"], ["<t>b"]),
        (in_order(Tag("<t>a"), "b"), ["<t>ab"], ["<t>b"]),
        (Json.of({"enum": [[1, {"a": 2}]], "x-guidance": {"key_separator": "="}}),
         ['[1,{"a":2}]', '[1, {"a": 2}]'], ['[1,  {"a":2}]', '[1,{"a"=2}]']),
        (Json("{}"), ["1", "[]"], ["x"]),
        (Json("true"), ["1", "[]"], ["x"]),
    ],
)  # fmt: skip
def test_parts(
    tree: Node, accepted: list[str], refused: list[str], specials: tuple[str, ...]
) -> None:
    accepts = vocabulary(*specials).accepts
    assert {text: accepts(calls(tree), text) for text in accepted} == dict.fromkeys(accepted, True)
    assert not any(accepts(calls(tree), text) for text in refused)


def test_a_schema_is_written_once_however_often_it_stands_there() -> None:
    schema = Json.of({"description": "// # /ü/ @answer"})
    rules = tree_rules(in_order(schema, one_of(schema, several(schema, schema))), {}, [])
    assert rules.count("%json") == 1


def test_trees_are_part_of_a_grammar() -> None:
    accepts = vocabulary().accepts
    assert accepts(Grammar(GrammarKind.REGEX, "a+"), "<think>") is False
    assert accepts(Grammar(GrammarKind.REGEX, "a+", tree=THOUGHT), "<think>") is None
