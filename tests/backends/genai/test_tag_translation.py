"""Trees in XGrammar's words."""

from __future__ import annotations

import json
from typing import Any

import openvino_genai as genai
import pytest
from msgspec.structs import replace

from fastovms.backends.genai.generation_config import structured_output
from fastovms.backends.genai.tag_translation import (
    MAX_REPEATS,
    CannotTranslate,
    structural_tag,
)
from fastovms.backends.xgrammar.json_rules import json_rules
from fastovms.config.model_config import DEMO_MODEL
from fastovms.grammar_tree import (
    ANY_TEXT,
    EMPTY,
    Answer,
    FirstTag,
    InOrder,
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
from fastovms.text.output_grammar import answer_grammar, call_grammar
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning.headed_messages import HeadedMessages
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools import TOOL_FORMATS, CallChoice

NOTHING = {"type": "regex", "pattern": "()"}
ANY = {"type": "any_text"}


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def rules(schema: object, *, has_blanks: bool = False) -> dict[str, Any]:
    return {"type": "grammar", "grammar": json_rules(schema, has_blanks=has_blanks)}


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}}


def schema_format(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def tag(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tag", "begin": "<", "content": content, "end": ">"}


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


A_TAG = TriggeredTag("<t>", Literal("a"), once=False)
A_TRIGGERED = triggered("<t>", const("a"), "", once=False)
C = either(sequence(const(","), const("c")), NOTHING)


def calls(tree: Node) -> dict[str, Any]:
    return translated(Grammar(GrammarKind.CALLS, "", tree=tree))


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (Literal('a\n"'), const('a\n"')),
        (in_order("a", "b"), sequence(const("a"), const("b"))),
        (one_of("a", "b"), either(const("a"), const("b"))),
        (in_order("a", one_of("b", "c")), sequence(const("a"), either(const("b"), const("c")))),
        (InOrder((Literal("a"), in_order("b", "c"))),
         sequence(const("a"), const("b"), const("c"))),
        (in_order("", "a", ""), const("a")),
        (EMPTY, NOTHING),
        (optional(Literal("a")), either(const("a"), NOTHING)),
        (Regex(r"\n?"), {"type": "regex", "pattern": r"\n?"}),
        (in_order(Tag("<t>"), "a"), sequence(const("<t>"), const("a"))),
        (in_order(Until("<t>"), "a"), sequence(until("<t>"), const("a"))),
        (
            in_order(Json.of({"type": "string", "x-guidance": {"a": 1}}), "a"),
            sequence(rules({"type": "string"}, has_blanks=True), const("a")),
        ),
        (
            in_order("a", TriggeredTag("<t>", in_order("b", "c"), once=False)),
            sequence(const("a"), triggered("<t>", const("b"), "c", once=False)),
        ),
        (
            TriggeredTag("<t>", in_order("b", "c"), once=True),
            triggered("<t>", const("b"), "c", once=True),
        ),
        (A_TAG, A_TRIGGERED),
        (replace(A_TAG, rest=Regex("a")),
         triggered("<t>", {"type": "regex", "pattern": "a"}, "", once=False)),
        (TextBefore("<t>", ANY_TEXT.excluding("a"), gap="\n"), until("\n<t>")),
        (TextBefore("<t>", Regex("a+", unlike=("b",)), gap="\n"),
         sequence({"type": "regex", "pattern": "a+"}, const("\n<t>"))),
        (OtherText(("a",), ("<t>",)), {"type": "any_text", "excludes": ["a", "<t>"]}),
        (FirstTag((("<t>", Literal("a")), ("<u>", EMPTY)), must_come=True),
         either(sequence(until("<t>"), const("a")), until("<u>"))),
        (FirstTag((("<t>", in_order("b", A_TAG)),), must_come=False), A_TRIGGERED),
        (one_of("b", in_order("c", A_TAG)),
         either(sequence(const("b"), ANY), sequence(const("c"), A_TRIGGERED))),
        (FirstTag((("<t>", EMPTY),), must_come=False),
         either(until("<t>"), {"type": "any_text", "excludes": ["<t>"]})),
        (
            Separated(((Literal("a"), False), (Literal("b"), True), (Literal("c"), False)), ","),
            either(
                sequence(const("a"), const(","), const("b"), C),
                sequence(const("b"), C),
            ),
        ),
        (
            Separated(((Literal("a"), False), (Literal("c"), False)), ","),
            either(sequence(const("a"), C), const("c"), NOTHING),
        ),
    ],
)  # fmt: skip
def test_parts(tree, expected):
    assert calls(tree) == expected


@pytest.mark.parametrize(
    ("tree", "num_first"), [(Repeat(Literal("a")), 0), (several(Literal("a"), ""), 1)]
)
def test_repetitions_end(tree, num_first):
    found = calls(tree)
    for _ in range(num_first):
        found = found["elements"][1]
    depth = 0
    while found != NOTHING:
        more, nothing = found["elements"]
        assert nothing == NOTHING
        found = more["elements"][1] if more["type"] == "sequence" else NOTHING
        depth += 1
    assert depth == MAX_REPEATS


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (ANY_TEXT.excluding("b"), "text that is not to match an expression"),
        (Regex("a", also=("b",)), "text that is not to match an expression"),
        (TextBefore("<t>", Regex("a", also=("b",))), "text that is to match several expressions"),
        (Separated(((Literal("a"), False),) * 20_000, ","), "more than 100 arguments that may be"),
    ],
)
def test_what_has_no_words_there(tree, message):
    with pytest.raises(CannotTranslate, match=message):
        calls(tree)


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "null"}', rules({"type": "null"})),
        (GrammarKind.JSON_OBJECT, "", rules({"type": "object"})),
        (
            GrammarKind.STRUCTURAL_TAG,
            json.dumps(tag(either(schema_format(PERSON), schema_format(True)))),
            tag(either(rules(PERSON), rules(True))),
        ),
        (
            GrammarKind.STRUCTURAL_TAG,
            json.dumps({"type": "qwen_xml_parameter", "json_schema": PERSON}),
            {
                "type": "qwen_xml_parameter",
                "json_schema": {**PERSON, "additionalProperties": False},
            },
        ),
        (GrammarKind.REGEX, "a+", {"type": "regex", "pattern": "a+"}),
        (GrammarKind.GRAMMAR, "root ::= x", {"type": "grammar", "grammar": "root ::= x"}),
        (GrammarKind.CHOICE, '["a", "b"]', either(const("a"), const("b"))),
        (GrammarKind.CHOICE, '["a"]', const("a")),
        (GrammarKind.STRUCTURAL_TAG, '{"type": "any_text"}', {"type": "any_text"}),
    ],
)
def test_answers_in_a_tree(kind, source, expected):
    grammar = Grammar(kind, source, tree=in_order("x", Answer()))
    assert translated(grammar) == sequence(const("x"), expected)


TOOLS = [
    Tool(
        "f",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
        },
    ),
    Tool("g"),
]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_calls_of_every_format(name):
    thoughts = REASONING_FORMATS.get(name, REASONING_FORMATS["qwen3"])
    if isinstance(TOOL_FORMATS[name].parse, HeadedMessages):
        assert thoughts.parse == TOOL_FORMATS[name].parse
    for required in (True, False):
        for parallel in (True, False):
            choice = CallChoice(TOOLS, required=required, parallel=parallel, strict=parallel)
            for reasoning, prompt in ((None, ""), (thoughts, ""), (thoughts, thoughts.begin)):
                structural_tag(call_grammar(TOOL_FORMATS[name], reasoning, choice, prompt=prompt))


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_answers_after_reasoning_of_every_format(name):
    answer = Grammar(GrammarKind.JSON_OBJECT, "")
    calls = (TOOL_FORMATS["hermes3"], CallChoice(TOOLS))
    for prompt in ("", "<think>"):
        for given in (None, calls):
            grammar = answer_grammar(answer, REASONING_FORMATS[name], prompt=prompt, calls=given)
            structural_tag(grammar)


@pytest.fixture(scope="module")
def pipeline() -> genai.ContinuousBatchingPipeline:
    return genai.ContinuousBatchingPipeline(DEMO_MODEL, genai.SchedulerConfig(), "CPU")


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_the_compiler_takes_calls_that_the_model_chooses(
    name: str, pipeline: genai.ContinuousBatchingPipeline
) -> None:
    thoughts = REASONING_FORMATS.get(name, REASONING_FORMATS["qwen3"])
    grammar = call_grammar(TOOL_FORMATS[name], thoughts, CallChoice(TOOLS), prompt="")
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = 1
    config.structured_output_config = structured_output(grammar)
    handle = pipeline.add_request(0, "a", config)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    del handle
