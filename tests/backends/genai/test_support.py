"""What the pipeline cannot do, and how what it can do is said to it."""

from __future__ import annotations

import json
from pathlib import Path

import openvino_genai as genai
import pytest

from fastovms.backends.genai.generation_config import generation_config, structured_output
from fastovms.backends.genai.support import (
    Assistance,
    check_grammar,
    check_salt,
    check_supported,
)
from fastovms.config import EngineConfig
from fastovms.errors import InvalidField, RequestError
from fastovms.grammar_tree import ANY_TEXT, Answer, TextBefore, in_order
from fastovms.params import (
    ALL_LOGPROBS,
    BeamSearch,
    EarlyStopping,
    Grammar,
    GrammarKind,
    SamplingParams,
)

NONE = Assistance()
LOOKUP = Assistance(prompt_lookup=True)
DRAFT = Assistance(draft_model=True)
REGEX = Grammar(GrammarKind.REGEX, "a+", "guided_regex")
UNLIMITED = 2**64 - 1


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("logprobs", {"logprobs": 2}),
        ("logprobs", {"logprobs": ALL_LOGPROBS}),
        ("prompt_logprobs", {"prompt_logprobs": 0}),
        ("logit_bias", {"logit_bias": ((1, 2.0),)}),
        ("allowed_token_ids", {"allowed_token_ids": (1,)}),
        ("bad_words", {"bad_words_token_ids": ((1,),)}),
        ("ignore_eos", {"ignore_eos": True, "beam_search": BeamSearch(2)}),
        ("frequency_penalty", {"frequency_penalty": 0.1, "beam_search": BeamSearch(2)}),
        ("presence_penalty", {"presence_penalty": 0.1, "beam_search": BeamSearch(2)}),
        ("repetition_penalty", {"repetition_penalty": 1.1, "beam_search": BeamSearch(2)}),
        ("guided_regex", {"grammar": REGEX, "beam_search": BeamSearch(2)}),
    ],
)
def test_what_it_cannot_do_names_the_field_and_the_backend(param, fields):
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
def test_what_it_can_do(fields):
    check_supported(SamplingParams(**fields), NONE, 8)


def test_beams_must_fit_and_do_without_drafts():
    params = SamplingParams(beam_search=BeamSearch(9))
    with pytest.raises(RequestError, match="9 beams cannot run: at most 8"):
        check_supported(params, NONE, 8)
    for assistance in (LOOKUP, DRAFT):
        with pytest.raises(InvalidField, match="beam search with drafts"):
            check_supported(SamplingParams(beam_search=BeamSearch(2)), assistance, 8)


def test_grammars_of_our_own_making():
    check_grammar(REGEX)
    for grammar in (
        Grammar(GrammarKind.CALLS, "", "tools", TextBefore("<t>", ANY_TEXT)),
        Grammar(GrammarKind.REGEX, "a", "tools", in_order(ANY_TEXT.excluding("b"), Answer())),
    ):
        with pytest.raises(InvalidField, match="tools is not supported by the genai backend"):
            check_grammar(grammar)
    check_grammar(Grammar(GrammarKind.REGEX, "a", tree=Answer()))


@pytest.mark.parametrize(
    "source",
    ["5", "{", "{}", '{"type": "sequence", "elements": 5}'],
)
def test_what_is_malformed_is_left_to_the_compiler(source):
    check_grammar(Grammar(GrammarKind.STRUCTURAL_TAG, source, "tools", Answer()))


def test_a_salt_cannot_be_had_with_a_shared_cache():
    check_salt(None, enable_prefix_caching=True)
    check_salt("s", enable_prefix_caching=False)
    with pytest.raises(InvalidField, match="cache_salt"):
        check_salt("s", enable_prefix_caching=True)


def test_assistance_is_what_the_pipeline_was_loaded_with():
    assert not Assistance.of(EngineConfig())
    assert Assistance.of(EngineConfig(enable_prompt_lookup=True)) == LOOKUP
    assert Assistance.of(EngineConfig(draft_model=Path("d"))) == DRAFT


def config_of(assistance: Assistance = NONE, **fields: object) -> genai.GenerationConfig:
    config = generation_config(
        SamplingParams(**fields),  # type: ignore[arg-type]
        index=2,
        seed=40,
        max_length=100,
        max_new_tokens=7,
        assistance=assistance,
    )
    config.validate()
    return config


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"do_sample": True, "temperature": 1.0, "rng_seed": 42, "max_new_tokens": 7}),
        ({"temperature": 0}, {"do_sample": False, "max_length": 100, "apply_chat_template": False}),
        ({"top_k": 5, "top_p": 0.5, "min_p": 0.25}, {"top_k": 5, "top_p": 0.5, "min_p": 0.25}),
        ({"top_k": 0}, {"top_k": UNLIMITED}),
        ({"logprobs": None}, {"logprobs": 0}),
        ({"logprobs": 0}, {"logprobs": 1}),
        ({"logprobs": 1}, {"logprobs": 1}),
        ({"min_tokens": 3}, {"min_new_tokens": 3}),
        ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
        ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"eos_token_ids": frozenset({5, 3})}, {"stop_token_ids": {3, 5}, "ignore_eos": False}),
        ({"eos_token_ids": frozenset()}, {"ignore_eos": True}),
        ({"eos_token_ids": frozenset({5}), "ignore_eos": True}, {"ignore_eos": True}),
        (
            {
                "eos_token_ids": frozenset({5}),
                "ignore_eos": True,
                "stop_token_ids": frozenset({9}),
            },
            {"stop_token_ids": {9}, "eos_token_id": 9, "ignore_eos": False},
        ),
        (
            {"stop_strings": ("a", "b")},
            {"stop_strings": {"a", "b"}, "include_stop_str_in_output": True},
        ),
        (
            {"beam_search": BeamSearch(4), "n": 3, "temperature": 0.7},
            {"num_beams": 4, "num_return_sequences": 3, "do_sample": False, "num_beam_groups": 1},
        ),
        (
            {"beam_search": BeamSearch(4, 2, 0.5, 2.0, EarlyStopping.NEVER)},
            {
                "num_beam_groups": 2,
                "diversity_penalty": 0.5,
                "length_penalty": 2.0,
                "stop_criteria": genai.StopCriteria.NEVER,
            },
        ),
        ({"beam_search": BeamSearch(4, 2, 0.0)}, {"num_beam_groups": 1}),
        ({"num_assistant_tokens": 4, "max_ngram_size": 2}, {"num_assistant_tokens": None}),
    ],
)
def test_parameters(fields, expected):
    config = config_of(**fields)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("assistance", "fields", "expected"),
    [
        (LOOKUP, {}, (5, 3, 0.0)),
        (LOOKUP, {"num_assistant_tokens": 0}, (5, 3, 0.0)),
        (LOOKUP, {"num_assistant_tokens": 2, "max_ngram_size": 7}, (2, 7, 0.0)),
        (LOOKUP, {"assistant_confidence_threshold": 0.5}, (5, 3, 0.0)),
        (DRAFT, {}, (5, 0, 0.0)),
        (DRAFT, {"num_assistant_tokens": 2, "max_ngram_size": 7}, (2, 0, 0.0)),
        (DRAFT, {"assistant_confidence_threshold": 0.5}, (None, 0, 0.5)),
    ],
)
def test_a_pipeline_with_assistance_is_always_told_how_much(assistance, fields, expected):
    config = config_of(assistance, **fields)
    assert (
        config.num_assistant_tokens,
        config.max_ngram_size,
        config.assistant_confidence_threshold,
    ) == expected


def test_grammars():
    content = {"type": "json_schema", "json_schema": {"type": "object"}}
    tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
    cases = {
        GrammarKind.JSON_SCHEMA: ("{}", "json_schema"),
        GrammarKind.JSON_OBJECT: ("", "json_schema"),
        GrammarKind.REGEX: ("a", "regex"),
        GrammarKind.GRAMMAR: ('root ::= "a"', "grammar"),
        GrammarKind.CHOICE: ('["a", "b"]', "structural_tags_config"),
        GrammarKind.STRUCTURAL_TAG: (json.dumps(tag), "structural_tags_config"),
    }
    for kind, (source, member) in cases.items():
        assert getattr(structured_output(Grammar(kind, source)), member), kind
    format_ = {"type": "const_string", "value": "a"}
    found = structured_output(
        Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(format_))
    ).structural_tags_config
    assert json.loads(found) == {"type": "structural_tag", "format": format_}
    assert set(cases) == set(GrammarKind) - {GrammarKind.CALLS}
