"""Tests of `fastovms/backends/genai/support.py`."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import openvino_genai as genai
import pytest
from msgspec.structs import replace

from fastovms.config import EngineConfig
from fastovms.errors import FieldFault, InvalidField, RequestError
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
from fastovms.params import (
    ALL_LOGPROBS,
    BeamSearch,
    Grammar,
    GrammarKind,
    ReasoningBudget,
    RepetitionDetection,
    SamplingFields,
    SamplingParams,
)
from fastovms.parts.genai.generation_config import generation_config, structured_output
from fastovms.parts.genai.support import (
    MAX_REPEATS,
    DraftSource,
    UnsupportedGrammarPart,
    check_fields,
    check_grammar,
    check_salt,
    check_supported,
    structural_tag,
)
from fastovms.parts.genai.xgrammar.json_rules import json_rules
from fastovms.request_fields import rows_of
from fastovms.server_config import DEMO_MODEL
from fastovms.text.headed_messages import HeadedMessages
from fastovms.text.output import answer_grammar, call_grammar
from fastovms.text.parameters import Tool
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMATS, CallChoice

# Grammars in XGrammar's structures.


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
def test_grammar_trees_become_xgrammar_formats(tree, expected):
    assert calls(tree) == expected


@pytest.mark.parametrize(
    ("tree", "num_first"), [(Repeat(Literal("a")), 0), (several(Literal("a"), ""), 1)]
)
def test_unbounded_repetitions_nest_up_to_the_maximum(tree, num_first):
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
        (ANY_TEXT.excluding("b"), "text that must not match a regular expression"),
        (Regex("a", also=("b",)), "text that must not match a regular expression"),
        (
            TextBefore("<t>", Regex("a", also=("b",))),
            "text that must match several regular expressions",
        ),
        (Separated(((Literal("a"), False),) * 20_000, ","), "more than 100 optional arguments"),
    ],
)
def test_untranslatable_grammar_is_refused(tree, message):
    with pytest.raises(UnsupportedGrammarPart, match=message):
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
def test_answer_in_a_tree_is_translated_by_kind(kind, source, expected):
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
def test_calls_of_every_format_are_translated_and_compiled(
    name: str, pipeline: genai.ContinuousBatchingPipeline
) -> None:
    thoughts = REASONING_FORMATS.get(name, REASONING_FORMATS["qwen3"])
    if isinstance(TOOL_FORMATS[name].parse, HeadedMessages):
        assert thoughts.parse == TOOL_FORMATS[name].parse
    for required in (True, False):
        for parallel in (True, False):
            choice = CallChoice(TOOLS, required=required, parallel=parallel, strict=parallel)
            for reasoning, prompt in ((None, ""), (thoughts, ""), (thoughts, thoughts.begin)):
                structural_tag(call_grammar(TOOL_FORMATS[name], reasoning, choice, prompt=prompt))
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = 1
    grammar = call_grammar(TOOL_FORMATS[name], thoughts, CallChoice(TOOLS), prompt="")
    config.structured_output_config = structured_output(grammar)
    handle = pipeline.add_request(0, "a", config)  # otherwise the request is dropped
    while pipeline.has_non_finished_requests():
        pipeline.step()
    del handle


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_answers_after_reasoning_of_every_format_are_translated(name):
    answer = Grammar(GrammarKind.JSON_OBJECT, "")
    calls = (TOOL_FORMATS["hermes3"], CallChoice(TOOLS))
    for prompt in ("", "<think>"):
        for given in (None, calls):
            grammar = answer_grammar(answer, REASONING_FORMATS[name], prompt=prompt, calls=given)
            structural_tag(grammar)


@pytest.fixture(scope="module")
def pipeline() -> genai.ContinuousBatchingPipeline:
    return genai.ContinuousBatchingPipeline(DEMO_MODEL, genai.SchedulerConfig(), "CPU")


# Parameters that the pipeline does not support, and the configuration of those that it supports.


NONE = DraftSource()
LOOKUP = DraftSource(prompt_lookup=True)
DRAFT = DraftSource(draft_model=True)
REGEX = Grammar(GrammarKind.REGEX, "a+", "guided_regex")
UNLIMITED = 2**64 - 1


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("logprobs", {"logprobs": 2}),
        ("logprobs", {"logprobs": ALL_LOGPROBS}),
        ("ignore_eos", {"ignore_eos": True, "beam_search": BeamSearch(2)}),
        ("frequency_penalty", {"frequency_penalty": 0.1, "beam_search": BeamSearch(2)}),
        ("presence_penalty", {"presence_penalty": 0.1, "beam_search": BeamSearch(2)}),
        ("repetition_penalty", {"repetition_penalty": 1.1, "beam_search": BeamSearch(2)}),
        ("guided_regex", {"grammar": REGEX, "beam_search": BeamSearch(2)}),
    ],
)
def test_unsupported_field_names_field_and_backend(param, fields):
    with pytest.raises(InvalidField, match=f"{param}.* is not supported by the genai backend") as e:
        check_supported(SamplingParams(**fields), NONE, 8)
    assert e.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 1, "seed": 3, "n": 20, "min_tokens": 3, "stop_token_ids": frozenset({4})},
        {"frequency_penalty": 1.0, "presence_penalty": 1.0, "repetition_penalty": 1.2},
        {"grammar": REGEX},
        {"beam_search": BeamSearch(8), "logprobs": 0},
        {"beam_search": BeamSearch(2), "ignore_eos": True, "stop_token_ids": frozenset({4})},
        {"ignore_eos": True},
        {"num_assistant_tokens": 3, "max_ngram_size": 3, "assistant_confidence_threshold": 0.5},
    ],
)
def test_supported_fields_are_accepted(fields):
    check_supported(SamplingParams(**fields), NONE, 8)


def test_beams_must_fit_and_do_without_drafts():
    params = SamplingParams(beam_search=BeamSearch(9))
    with pytest.raises(RequestError, match="9 beams cannot run: --max-num-seqs allows 8"):
        check_supported(params, NONE, 8)
    for assistance in (LOOKUP, DRAFT):
        with pytest.raises(InvalidField, match="beam search with drafts"):
            check_supported(SamplingParams(beam_search=BeamSearch(2)), assistance, 8)


def test_untranslatable_own_grammar_names_the_field():
    check_grammar(REGEX)
    for grammar in (
        Grammar(GrammarKind.CALLS, "", "tools", TextBefore("<t>", Regex("a", also=("b",)))),
        Grammar(GrammarKind.REGEX, "a", "tools", in_order(ANY_TEXT.excluding("b"), Answer())),
    ):
        with pytest.raises(InvalidField, match="tools is not supported by the genai backend"):
            check_grammar(grammar)
    check_grammar(Grammar(GrammarKind.REGEX, "a", tree=Answer()))


@pytest.mark.parametrize(
    "source",
    ["5", "{", "{}", '{"type": "sequence", "elements": 5}'],
)
def test_malformed_tag_is_left_to_the_compiler(source):
    check_grammar(Grammar(GrammarKind.STRUCTURAL_TAG, source, "tools", Answer()))


def test_cache_salt_is_refused_with_prefix_caching():
    check_salt(None, enable_prefix_caching=True)
    check_salt("s", enable_prefix_caching=False)
    with pytest.raises(InvalidField, match="cache_salt"):
        check_salt("s", enable_prefix_caching=True)


def test_assistance_is_what_the_pipeline_was_loaded_with():
    assert not DraftSource.of(EngineConfig())
    assert DraftSource.of(EngineConfig(enable_prompt_lookup=True)) == LOOKUP
    assert DraftSource.of(EngineConfig(draft_model=Path("d"))) == DRAFT


def config_of(assistance: DraftSource = NONE, **fields: Any) -> genai.GenerationConfig:
    config = generation_config(
        SamplingParams(**fields),
        index=2,
        seed=40,
        max_length=100,
        max_new_tokens=7,
        assistance=assistance,
    )
    config.validate()
    return config


# The genai backend handles or refuses every field that a request may have.


WHERE: Final = {"temperature": 0.7, "eos_token_ids": frozenset({2})}
"""Base requests in which fields have a visible effect: greedy texts use neither seeds nor filters.
"""

VALUES: Final[dict[str, object]] = {
    **{
        name: next(
            value
            for value in (*row.examples("openai").taken, 0.5, 7)
            if value not in (getattr(SamplingParams(), name), -1)
        )
        for name, row in rows_of(SamplingFields).items()
        if row.field.is_param
    },
    "max_tokens": 3, "temperature": 0.3, "top_p": 0.5, "min_p": 0.1, "n": 2,
    "ignore_eos": True, "eos_token_ids": frozenset({3}), "stop_token_ids": frozenset({4}),
    "min_tokens": 2,
    "logit_bias": ((1, 2.0),), "allowed_token_ids": (1,), "bad_words_token_ids": ((1,),),
    "logprobs": 1, "logprob_token_ids": (1,), "prompt_logprobs": 1,
    "grammar": Grammar(GrammarKind.REGEX, "a", "guided_regex"),
    "beam_search": BeamSearch(2), "num_assistant_tokens": 3, "max_ngram_size": 2,
    "assistant_confidence_threshold": 0.5, "stop_strings": ("a",),
    "reasoning_budget": ReasoningBudget(5, (), False, False, (), ()),
    "repetition_detection": RepetitionDetection(2, 1, 3),
}  # fmt: skip
"""A value of each field other than its default."""


def config_members(assistance: DraftSource, **given: object) -> dict[str, object]:
    """Returns the members of the pipeline's configuration."""
    config = config_of(assistance, **{**WHERE, **given})
    names = [name for name in dir(genai.GenerationConfig) if not name.startswith("_")]
    members = {name: getattr(config, name) for name in names}
    return {name: str(value) for name, value in members.items() if not callable(value)}


ENGINE: Final = {"max_tokens", "seed", "n"}
"""The fields that the engine handles itself."""

OTHER_NAMES: Final = {
    "bad_words_token_ids": "bad_words",
    "reasoning_budget": "thinking_token_budget",
}
"""The names of fields in requests, where they differ."""


def test_each_field_has_a_value_here() -> None:
    assert set(VALUES) == {field.name for field in fields(SamplingParams)}


def refused_field(**given: object) -> str | None:
    """Returns the field for which the pipeline refuses these parameters; None = it accepts them."""
    try:
        check_fields(SamplingParams(**given))  # type: ignore[arg-type]
    except FieldFault as fault:
        return fault.field
    return None


@pytest.mark.parametrize("name", sorted(VALUES.keys() - ENGINE))
def test_each_field_is_forwarded_or_refused_by_its_name(name: str) -> None:
    given = {name: VALUES[name]}
    assistance = DRAFT if name == "assistant_confidence_threshold" else LOOKUP
    changes_config = config_members(assistance, **given) != config_members(assistance)
    refused = None if changes_config else OTHER_NAMES.get(name, name)
    assert refused_field(**given) == refused
