"""Rules for texts in which special tokens stand, tried on a vocabulary."""

from __future__ import annotations

import pytest

from fastovms.grammar.lark.lark_writer import FreeText, LarkPart, LarkWriter, quoted
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary


def writer() -> LarkWriter:
    return LarkWriter({"<a>": 1, "<ab>": 2, "[E]": 3})


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("plain", ["plain"]),
        ("x<a>y[E]", ["x", 1, "y", 3]),
        ("<ab><a>", [2, 1]),
        ("<a", ["<a"]),
    ],
)
def test_a_text_is_cut_at_the_tokens_it_names(text: str, pieces: list[str | int]) -> None:
    assert writer().pieces(text) == pieces
    assert LarkWriter({}).pieces(text) == ([text] if text else [])


def test_special_tokens_are_looked_up() -> None:
    assert writer().special_token_at_start("<ab>x") == "<ab>"
    assert writer().special_token_at_start("x<ab>") == ""
    assert writer().special_tokens_with("a") == [1, 2]
    assert writer().other_special_tokens([1]) == "<[2,3]>"
    assert writer().other_special_tokens([1, 2, 3]) == ""


@pytest.mark.parametrize(
    ("text", "written"), [("a", '"a"'), ('"\n\\', '"\\"\\n\\\\"'), ("é", '"é"')]
)
def test_quotes(text: str, written: str) -> None:
    assert quoted(text) == written


A, RULE = LarkPart('"a"', True), LarkPart("<[1]>", False)


def test_terminals_beside_each_other_become_one() -> None:
    rules = writer()
    assert rules.join([A, A, RULE]) == "TERMINAL0 <[1]>"
    assert rules.source("x") == 'TERMINAL0: "a" "a"\nstart: x'
    assert rules.join([]) == '""'


def test_what_is_made_of_terminals_is_one() -> None:
    rules = writer()
    assert rules.either([[A], []]) == LarkPart('("a" | "")', True)
    assert rules.repeat([A, A], "?") == LarkPart('("a" "a")?', True)
    assert not rules.either([[A], [RULE]]).is_terminal
    assert not rules.repeat([RULE], "{2}").is_terminal


@pytest.mark.parametrize("specials", [(), ("</s>",), ("</s>", "<other>")], ids=str)
@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [("</s>", True), ("a<</s>", True), ("a", None), ("a</s>b", False), ("no</s>", False)],
)
def test_free_text_ends_with_the_first_stop(
    specials: tuple[str, ...], text: str, is_accepted: bool | None
) -> None:
    words = vocabulary(*specials)
    rules = LarkWriter({name: words.encode(name)[0] for name in specials})
    start = FreeText(rules, ["</s>"], excludes=["no"]).until("</s>")
    grammar = Grammar(GrammarKind.GRAMMAR, rules.source(start))
    assert words.accepts(grammar, text) is is_accepted
