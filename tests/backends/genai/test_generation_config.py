"""Tests that parameters and grammars become the pipeline's configuration."""

from __future__ import annotations

import json

import openvino_genai as genai
import pytest

from fastovms.params import BeamSearch, EarlyStopping, Grammar, GrammarKind
from fastovms.parts.genai.generation_config import structured_output
from tests.backends.genai.test_support import DRAFT, LOOKUP, UNLIMITED, config_of


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"do_sample": True, "temperature": 1.0, "rng_seed": 42, "max_new_tokens": 7}),
        ({"temperature": 0}, {"do_sample": False, "max_length": 100, "apply_chat_template": False}),
        ({"temperature": 1e-6}, {"do_sample": False}),
        ({"top_k": 5, "top_p": 0.5, "min_p": 0.25}, {"top_k": 5, "top_p": 0.5, "min_p": 0.25}),
        ({"min_p": 1.0}, {"min_p": 1 - 2**-24}),  # the pipeline takes no 1
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
def test_generation_config_carries_the_sampling_parameters(fields, expected):
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
def test_generation_config_with_drafts_has_their_limits(assistance, fields, expected):
    config = config_of(assistance, **fields)
    assert (
        config.num_assistant_tokens,
        config.max_ngram_size,
        config.assistant_confidence_threshold,
    ) == expected


def test_each_grammar_kind_sets_its_structured_output_member():
    content = {"type": "json_schema", "json_schema": {"type": "object"}}
    tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
    cases = {
        GrammarKind.JSON_SCHEMA: ("{}", "grammar"),
        GrammarKind.JSON_OBJECT: ("", "grammar"),
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
