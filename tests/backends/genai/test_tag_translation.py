"""Tagged rules in XGrammar's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastovms.backends.genai.tag_translation import (
    MAX_REPEATS,
    CannotTranslate,
    needs_structural_tag,
    structural_tag,
)
from fastovms.params import Grammar, GrammarKind
from fastovms.text.output_grammar import answer_grammar, call_grammar
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools import TOOL_FORMATS, CallChoice

NOTHING = {"type": "regex", "pattern": "()"}
ANY = {"type": "any_text"}


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def sequence(*items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(items)}


def either(*items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "or", "elements": list(items)}


def until(tag: str) -> dict[str, Any]:
    return {"type": "tag", "begin": "", "content": ANY, "end": tag}


def triggered(begin: str, content: dict[str, Any], end: str, *, once: bool) -> dict[str, Any]:
    return {
        "type": "triggered_tags",
        "triggers": [begin],
        "tags": [{"begin": begin, "content": content, "end": end}],
        "at_least_one": False,
        "stop_after_first": once,
    }


def translated(grammar: Grammar) -> dict[str, Any]:
    found = json.loads(structural_tag(grammar))
    assert found.keys() == {"type", "format"}
    format_: dict[str, Any] = found["format"]
    return format_


def rules(*lines: str) -> dict[str, Any]:
    return translated(Grammar(GrammarKind.TAGGED_RULES, "\n".join(lines)))


TAG = '%tag t "<t>"'


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['start: "a"'], const("a")),
        (['start: "a\\n\\"" "b"'], sequence(const('a\n"'), const("b"))),
        (['start: "a" | "b"'], either(const("a"), const("b"))),
        (['start: "a" ("b" | "c")'], sequence(const("a"), either(const("b"), const("c")))),
        (['start: "a" ("b" "c")'], sequence(const("a"), const("b"), const("c"))),
        (['start: "" "a" ""'], const("a")),
        (['start: ""'], NOTHING),
        (['start: "a"?'], either(const("a"), NOTHING)),
        ([r"start: /\n?/ /a\/b/"], sequence(
            {"type": "regex", "pattern": r"\n?"}, {"type": "regex", "pattern": r"a\/b"}
        )),
        (["r: /x/", 'start: r "y" r'], sequence(
            {"type": "regex", "pattern": "x"}, const("y"), {"type": "regex", "pattern": "x"}
        )),
        ([TAG, 'start: t "a"'], sequence(const("<t>"), const("a"))),
        ([TAG, 'start: until_t "a"'], sequence(until("<t>"), const("a"))),
        (
            ['start: %json {"type": "string", "x-guidance": {"a": 1}} "a"'],
            sequence({"type": "json_schema", "json_schema": {"type": "string"}}, const("a")),
        ),
        (
            [TAG, 'start: "a" (until_t "b" "c")* without_t'],
            sequence(const("a"), triggered("<t>", const("b"), "c", once=False)),
        ),
        (
            [TAG, 'start: (until_t "b" "c" | without_t)'],
            triggered("<t>", const("b"), "c", once=True),
        ),
    ],
)  # fmt: skip
def test_terms(lines, expected):
    assert rules(*lines) == expected


def test_repetitions_end():
    found = rules('start: "a"*')
    depth = 0
    while found != NOTHING:
        more, nothing = found["elements"]
        assert nothing == NOTHING
        found = more["elements"][1] if more["type"] == "sequence" else NOTHING
        depth += 1
    assert depth == MAX_REPEATS


@pytest.mark.parametrize(
    "lines",
    [
        ["start: nowhere"],
        ["start: ("],
        ['start: ("a"'],
        ['start: "a" )'],
        ["start: <[5]>"],
        ["start: /a/ & ~/b/"],
        [TAG, "%text x t /a/", "start: x"],
        [TAG, "start: without_t"],
        [TAG, 'start: (until_t "a")* without_t'],
        [TAG, "start: (until_t /a/ /b/)* without_t"],
        [TAG, '%tag u "u"', 'start: (until_t "a" "b")* without_u'],
        ["TERMINAL0: /a/ & /b/", "start: TERMINAL0"],
        ["%ignore x", 'start: "a"'],
        ["start: @answer"],
    ],
)
def test_what_has_no_words_there(lines):
    with pytest.raises(CannotTranslate):
        rules(*lines)


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        (GrammarKind.JSON_SCHEMA, '{"a": 1}', {"type": "json_schema", "json_schema": {"a": 1}}),
        (
            GrammarKind.JSON_OBJECT,
            "",
            {"type": "json_schema", "json_schema": {"type": "object"}},
        ),
        (GrammarKind.REGEX, "a+", {"type": "regex", "pattern": "a+"}),
        (GrammarKind.GRAMMAR, "root ::= x", {"type": "grammar", "grammar": "root ::= x"}),
        (GrammarKind.CHOICE, '["a", "b"]', either(const("a"), const("b"))),
        (GrammarKind.CHOICE, '["a"]', const("a")),
        (GrammarKind.STRUCTURAL_TAG, '{"format": {"type": "any_text"}}', {"type": "any_text"}),
        (
            GrammarKind.STRUCTURAL_TAG,
            '{"structures": [{"begin": "<f>", "schema": {}, "end": "."}], "triggers": ["<f"]}',
            {
                "type": "triggered_tags",
                "triggers": ["<f"],
                "tags": [
                    {
                        "begin": "<f>",
                        "content": {"type": "json_schema", "json_schema": {}},
                        "end": ".",
                    }
                ],
            },
        ),
    ],
)
def test_answers_in_a_frame(kind, source, expected):
    assert not needs_structural_tag(Grammar(kind, source))
    grammar = Grammar(kind, source, frame='start: "x" @answer')
    assert needs_structural_tag(grammar)
    assert translated(grammar) == sequence(const("x"), expected)


TOOLS = [
    Tool("f", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    Tool("g"),
]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_required_calls_of_every_format(name):
    for parallel in (True, False):
        choice = CallChoice(TOOLS, required=True, parallel=parallel)
        structural_tag(call_grammar(TOOL_FORMATS[name], None, choice, prompt=""))


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_answers_after_reasoning_of_every_format(name):
    answer = Grammar(GrammarKind.JSON_OBJECT, "")
    calls = (TOOL_FORMATS["hermes3"], CallChoice(TOOLS))
    for prompt in ("", "<think>"):
        for given in (None, calls):
            grammar = answer_grammar(answer, REASONING_FORMATS[name], prompt=prompt, calls=given)
            structural_tag(grammar)
