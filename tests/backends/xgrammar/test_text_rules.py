"""Tests of patterns for the JSON encoding of the strings that they match."""

from __future__ import annotations

import openvino_genai as genai
import pytest

from fastovms.parts.genai.xgrammar.text_rules import (
    CHARACTER,
    CHARACTERS,
    NAME_CHARACTERS,
    UnsupportedSchema,
    matching,
    quoted,
    rest_of_string,
)
from tests.backends.xgrammar.repeating_pipeline import RepeatingPipeline


def allows(pipeline: RepeatingPipeline, expression: str, text: str, *more_rules: str) -> bool:
    config = genai.StructuredOutputConfig()
    rules = [f'root ::= "<" {expression} ">"', f"char ::= {CHARACTER}", *more_rules]
    config.grammar = "\n".join(rules)
    return pipeline.allows(config, f"<{text}>")


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("^a.c$", ["abc", r"a\"c", r"a\tc", r"a\u0001c", "aüc"], ["ac", 'a"c', r"a\nc", "xabc"]),
        ("b+", ["b", "abbc", r"\nb\n"], ["", "a"]),
        ("^a|b$", ["ax", "xb", "a", "b"], ["xa", "bx"]),
        ("^(?:ab|c){2,3}$", ["abc", "cc", "ccab"], ["ab", "cccc"]),
        (r"^[^a-z\d]\w\s?$", ["A_", r"\"9 ", r"B0\n"], ["a_", "A-", "A_x"]),
        (r"^\D\S\W$", ["a--", r"é-\""], ["1--", "a -", "a-a"]),
        (r"^\\\.\/$", [r"\\./"], ["./"]),
        ("^x*?y??$", ["", "xx", "xy"], ["yy"]),
        ("^$", [""], ["a"]),
        ("^(?P<n>a)(b|)$", ["a", "ab"], ["b"]),
    ],
    ids=str,
)
def test_pattern_rule_matches_the_json_spelling_of_its_texts(
    pipeline: RepeatingPipeline, pattern: str, matched: list[str], others: list[str]
) -> None:
    expression = matching(pattern, "char")
    assert [text for text in matched if not allows(pipeline, expression, text)] == []
    assert [text for text in others if allows(pipeline, expression, text)] == []


def test_a_pattern_of_the_whole_text(pipeline: RepeatingPipeline) -> None:
    expression = matching("a|bc", "char", whole=True)
    found = [text for text in ("a", "bc", "ab", "xa") if allows(pipeline, expression, text)]
    assert found == ["a", "bc"]


@pytest.mark.parametrize(
    "pattern", ["a(?=b)", r"\bx", "(a)\\1", "(?i)a", "[[:alpha:]]", "(", "a^b", "[]", r"\p{L}"]
)
def test_unsupported_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedSchema, match="something in a pattern"):
        matching(pattern, "char")


@pytest.mark.parametrize(
    ("least", "more"),
    [
        ("^.{1,128}$", "^.{1,129}$"),
        ("(ab){64}", "(ab){65}"),
        ("^((a|b{3}){4}){8}", "^((a|b{3}){4}){9}"),
        ("(a{100})|b{28,}", "(a{100})|b{29,}"),
    ],
)
def test_pattern_counts_are_bounded(least: str, more: str) -> None:
    matching(least, "char")
    with pytest.raises(UnsupportedSchema, match="counts of more than 128 characters in a pattern"):
        matching(more, "char")


def test_rest_of_string_ends_at_the_quote(pipeline: RepeatingPipeline) -> None:
    for characters, allowed in ((CHARACTERS, False), (NAME_CHARACTERS, True)):
        rule = f"rest ::= {rest_of_string('rest', characters)}"
        for text in (r"a\/", r"\u0061b"):
            assert allows(pipeline, "rest", f'{text}"', rule) == allowed
        for text in ("", "a b", r"\n\u001f", "é😀日", r"\\\""):
            assert allows(pipeline, "rest", f'{text}"', rule), text
        for text in ('"', "\\", "a\n", "\x7f"):
            assert not allows(pipeline, "rest", f'{text}"', rule), text


def test_quoted_literal_matches_its_text(pipeline: RepeatingPipeline) -> None:
    for text in ('a"b', "\\n", "é\n😀", "[a]-^", ""):
        assert allows(pipeline, quoted(text), text), text
