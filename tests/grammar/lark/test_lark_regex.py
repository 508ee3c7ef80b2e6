"""Grammars in Lark become expressions that match the same texts, where there are such."""

from __future__ import annotations

import re

import pytest

from fastovms.grammar.lark.lark_regex import MAX_LENGTH, Irregular, lark_regex

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
"""The form in which coding agents ask for changes of files."""
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
def test_a_grammar_as_an_expression(source, matched, others):
    if matched is None:
        with pytest.raises(Irregular):
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
        ('start: "a")', "closes nothing"),
        ('start: * "a"', "nothing before it"),
        ('start: "a"{}', "no number"),
        (r'start: "\q"', "JSON's notation"),
    ],
)
def test_a_malformed_grammar_is_refused(source, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        lark_regex(source)
