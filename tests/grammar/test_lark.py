"""Tests of `fastovms/grammar/lark.py`."""

from __future__ import annotations

import re

import pytest

from fastovms.grammar.lark import (
    MAX_LENGTH,
    FreeText,
    LarkWriter,
    NotRegular,
    lark_regex,
    unmatchable_rule,
)
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

# Lark grammars become regular expressions that match the same texts, where possible.


PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"""
"""The format in which coding agents request changes of files."""
CHANGE = "*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-a\n+b\n*** End Patch\n"


@pytest.mark.parametrize(
    ("source", "matched", "others"),
    [
        (PATCH, [CHANGE, CHANGE[:-1]], ["", CHANGE[1:], CHANGE.replace("@@", "@"), CHANGE * 2]),
        ('start: "a" b?\nb: "b" | "c"i', ["a", "ab", "aC"], ["aB", "b", ""]),
        ('start: A\n     | "x" A\nA: "a"+', ["a", "xaa"], ["x", ""]),
        ('?start: ["a"] ("b" | "c")~2', ["bc", "abb"], ["ab", "abcb"]),
        ('start: "a"~1..2 "b"{2} "c"{1,} "d"{,1}', ["abbc", "aabbccd"], ["abc", "abbcdd"]),
        ('start: "a".."c" /[0-9]+/i', ["b12"], ["d1", "b"]),
        ('start: INT ("," INT)*\n%ignore WS\n%import common (INT)', None, None),
        (
            "start: INT (\",\" INT)*\n%ignore WS\n%import common.INT\n%import common.WS",
            ["1,2", " 1 , 23 \n"], ["1,", "1 2"],
        ),
        ('start: N\n%import common.SIGNED_NUMBER -> N', ["-1.5e3", "2"], ["a", "--1"]),
        ('// says hello\nstart: "hello" # twice\n  "hello"', ["hellohello"], ["hello"]),
        (r'start: "\n\"(*" /\//', ['\n"(*/'], ["/"]),
        ('start: e\ne: "(" e ")" | "x"', None, None),
        ('start: %json {"type": "object"}', None, None),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, None, None),
        ("start: " + " | ".join(["a"] * 5000) + f'\na: "{"x" * 1000}"', None, None),
        ("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(1000)) + '\nr1000: "a"',
         None, None),
        ('start: <|im_end|>', None, None),
        ('%llguidance {}\nstart: "a"', None, None),
        ("start: a a\n" + "\n".join(f"{x}: {y}~9 {y}" for x, y in zip("abcd", "bcde", strict=True))
         + f'\ne: "{"x" * 2000}"', None, None),
    ],
)  # fmt: skip
def test_regular_grammar_becomes_an_expression(source, matched, others):
    if matched is None:
        with pytest.raises(NotRegular):
            lark_regex(source)
        return
    expression = lark_regex(source)
    assert len(expression) <= MAX_LENGTH
    for text in matched:
        assert re.fullmatch(expression, text), text
    for text in others:
        assert not re.fullmatch(expression, text), text


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('x: "a"', "no rule 'start'"),
        ("start: a", "no rule or terminal 'a'"),
        ('start: ("a"', "')' is missing"),
        ('start: "a")', "is unmatched"),
        ('start: * "a"', "nothing before it"),
        ('start: "a"{}', "must have a number"),
        (r'start: "\q"', "not a JSON string"),
    ],
)
def test_malformed_lark_is_refused(source, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        lark_regex(source)


# Rules that match nothing are found, and no others.


@pytest.mark.parametrize(
    ("lark", "expected"),
    [
        ("start: /a+/ b\nb: b", "start"),
        ("start: b?\nb: b", "b"),
        ("start: b\nb: c\nc: b", "start"),
        ('start: "x" start', "start"),
        ('start: "x" (start | b)\nb: start', "start"),
        ('start: "x" start{2}', "start"),
        ("start: A\nA: A", "start"),
        ('start: "x" start ~ 1..3', "start"),
    ],
)
def test_rule_without_an_end_is_found(lark: str, expected: str) -> None:
    assert unmatchable_rule(lark) == expected


@pytest.mark.parametrize(
    "lark",
    [
        'start: "a" | "b" start',
        'start: "(" start? ")"',
        'start: "(" [start] ")"',
        'start: item*\nitem: start "x"',
        'start: "x" start{0,2}',
        'start: "x" start ~ 0..3',
        'start: "a"\n  | start "b" // start: nothing\n',
        'start[capture]: A b\nA: /[a-z]+/\nb: "|" | ("(" b ")")',
        'start: %json {"type": "object", "title": "b: }"} tail\ntail: "."',
        "start: <tool_call> text <[1-5]>\n?text.2: /(.|\\n)*/ -> name",
        "%ignore /\\s+/\nstart: undefined",
        'start: "\\"" other "/"\nother: /\\/+/',
        'start: ("a" | (("b")))+',
        "not lark at all {{",
        "",
    ],
)
def test_rules_that_end_are_accepted(lark: str) -> None:
    assert unmatchable_rule(lark) is None


def test_chain_of_many_rules_is_followed() -> None:
    rules = [f'r{i}: "x" r{i + 1}' for i in range(200)]
    assert unmatchable_rule("\n".join(["start: r0", *rules, 'r200: "y"'])) is None
    assert unmatchable_rule("\n".join(["start: r0", *rules, "r200: r0"])) == "start"


@pytest.mark.slow
def test_too_many_references_are_refused() -> None:
    names = [f"r{i}" for i in range(3000)]
    rules = [f'{name}: "x"' for name in names]
    with pytest.raises(ValueError, match="too many references"):
        unmatchable_rule("\n".join(["start: start", *rules, f"all: start {' '.join(names)}"]))


@pytest.mark.parametrize("name", ["r", "T"])
def test_too_long_chain_of_rules_is_refused(name: str) -> None:
    def chain(length: int) -> str:
        rules = [f"{name}{i}: {name}{i + 1} | {name}0" for i in range(length)]
        return "\n".join([f"start: {name}0", *rules, f'{name}{length}: "a"'])

    assert unmatchable_rule(chain(240)) is None
    with pytest.raises(ValueError, match="a chain of rules is longer than 250"):
        unmatchable_rule(chain(260))


# Rules for texts with special tokens, with a vocabulary.


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
