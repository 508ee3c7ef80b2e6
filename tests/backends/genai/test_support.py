"""What the pipeline cannot do, and how what it can do is said to it."""

from __future__ import annotations

from pathlib import Path

import openvino_genai as genai
import pytest

from fastovms.backends.genai.generation_config import generation_config
from fastovms.backends.genai.support import (
    Assistance,
    check_grammar,
    check_salt,
    check_supported,
)
from fastovms.config.engine_config import EngineConfig
from fastovms.errors import InvalidField, RequestError
from fastovms.grammar_tree import ANY_TEXT, Answer, Regex, TextBefore, in_order
from fastovms.params import (
    ALL_LOGPROBS,
    BeamSearch,
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
