"""Grammars as llama.cpp's users write them."""

from __future__ import annotations

import pytest

from fastovms.errors import InvalidField
from fastovms.grammar.lark.gbnf import lark_rules
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

LIST = r"""root ::= item+

# Excludes various line break characters
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
PERSON = r"""age ::= ("-"? integral-part) space
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
integral-part ::= [0] | [1-9] [0-9]{0,15}
name ::= "\"" char* "\"" space
name-kv ::= "\"name\"" space ":" space name
age-kv ::= "\"age\"" space ":" space age
root ::= "{" space name-kv "," space age-kv "}" space
space ::= | " " | "\n"{1,2} [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("rules", "allowed", "refused"),
    [
        (LIST, ["- a\n- b c\n"], ["a\n", "- a\u2028\n"]),
        (PERSON, ['{"name":"a","age":3}', '{ "name": "a\\n", "age": -3 }'], ['{"name":"a"}']),
        ('root ::= "yes" | "no" "."?', ["yes", "no."], ["maybe"]),
        ('root ::= first-part second_part\nfirst-part ::= "a" | "A"\nsecond_part ::= [^abc]{2,3}',
         ["axx", "Axyz"], ["ax", "axb"]),
        ('root ::= "a" x\nx ::= "b" | ', ["a", "ab"], ["b"]),
        (r'root ::= "\u00e9" [\u0041-\u0043] "\x41" "\U0001F600" "\\u0041" .', [r"éBA😀\u0041z"],
         [r"éDA😀\u0041z"]),
        ('start: "a" /b+/', ["ab"], ["a"]),
    ],
)  # fmt: skip
def test_what_may_be_written(rules: str, allowed: list[str], refused: list[str]) -> None:
    grammar = Grammar(GrammarKind.GRAMMAR, rules)
    for text in allowed:
        assert vocabulary().accepts(grammar, text) is True, text
    for text in refused:
        assert vocabulary().accepts(grammar, text) is not True, text


@pytest.mark.parametrize(
    "rules", [r'root ::= "\ud800"', r'root ::= "\UFFFFFFFF"', "root ::= [", "a ::= b", "root ::= b"]
)
def test_what_is_malformed(rules: str) -> None:
    with pytest.raises(InvalidField, match="the grammar cannot be used"):
        vocabulary().matcher(Grammar(GrammarKind.GRAMMAR, rules))


def test_rules_of_lark_stay_as_they_are() -> None:
    assert lark_rules(r'start: "\u0041"') == r'start: "\u0041"'
