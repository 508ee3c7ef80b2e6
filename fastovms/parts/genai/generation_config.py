"""Converts sampling parameters into OpenVINO GenAI's `GenerationConfig`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import openvino_genai as genai

from fastovms.grammar.finite_schema import integer_of
from fastovms.params import (
    GREEDY_TEMPERATURE,
    BeamSearch,
    EarlyStopping,
    Grammar,
    GrammarKind,
    SamplingFields,
    SamplingParams,
)
from fastovms.parts.genai.support import DraftSource, num_assistant_tokens, structural_tag
from fastovms.parts.genai.xgrammar.json_rules import json_rules
from fastovms.request_fields import GenaiUse, rows_of

DEFAULT_MAX_NGRAM_SIZE: Final = 3
"""The default maximum length in tokens of the suffix that prompt lookup searches for."""

_STOP_CRITERIA: Final[Mapping[EarlyStopping, Any]] = {
    EarlyStopping.EARLY: genai.StopCriteria.EARLY,
    EarlyStopping.HEURISTIC: genai.StopCriteria.HEURISTIC,
    EarlyStopping.NEVER: genai.StopCriteria.NEVER,
}


def generation_config(
    params: SamplingParams,
    *,
    index: int,
    seed: int,
    max_length: int,
    max_new_tokens: int | None,
    assistance: DraftSource,
) -> genai.GenerationConfig:
    """Returns the pipeline's configuration for sample `index`, or for the whole beam search.
    `max_length` limits prompt and output together if `max_new_tokens` is None; the pipeline refuses
    a prompt that is not shorter in either case."""
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_length = max_length
    if max_new_tokens is not None:
        config.max_new_tokens = max_new_tokens
    config.min_new_tokens = params.min_tokens
    config.logprobs = 0 if params.logprobs is None else 1
    _set_members(config, params, GenaiUse.ALWAYS)
    _set_stops(config, params)
    if params.grammar is not None:
        config.structured_output_config = structured_output(params.grammar)
    if params.beam_search is not None:
        _set_beams(config, params.beam_search, params.n)
        return config
    if params.temperature > GREEDY_TEMPERATURE:
        config.do_sample = True
        _set_members(config, params, GenaiUse.SAMPLING)
        config.rng_seed = (seed + index) % 2**32
        if params.top_k:
            config.top_k = params.top_k
    if assistance:
        _set_assistance(config, params, assistance)
    return config


def stop_token_ids(params: SamplingParams) -> frozenset[int]:
    """Returns the ids of all tokens that end a sample."""
    eos_token_ids = frozenset[int]() if params.ignore_eos else params.eos_token_ids
    return eos_token_ids | params.stop_token_ids


def _set_stops(config: genai.GenerationConfig, params: SamplingParams) -> None:
    """Sets the stop tokens and strings. The pipeline's `ignore_eos` disables all stop tokens, and
    without stop tokens the pipeline uses the model's. `ignore_eos` is therefore set only if no
    token may stop a sample."""
    stops = stop_token_ids(params)
    if stops:
        config.stop_token_ids = set(stops)
        config.eos_token_id = min(stops)
    config.ignore_eos = not stops
    if params.stop_strings:
        config.stop_strings = set(params.stop_strings)
        config.include_stop_str_in_output = True


_MAX_MIN_P: Final = 1 - 2**-24
"""The largest `min_p` that the pipeline accepts: a 32-bit float below 1. As with 1, only the most
likely token and those of equal probability remain."""


def _set_members(config: genai.GenerationConfig, params: SamplingParams, use: GenaiUse) -> None:
    """Sets the members of `config` that have the same names as sampling parameters."""
    for name, row in rows_of(SamplingFields).items():
        if row.field.genai is use:
            setattr(config, name, getattr(params, name))
    config.min_p = min(config.min_p, _MAX_MIN_P)


def _set_beams(config: genai.GenerationConfig, search: BeamSearch, n: int) -> None:
    config.num_beams = search.num_beams
    config.num_return_sequences = n
    config.length_penalty = search.length_penalty
    config.stop_criteria = _STOP_CRITERIA[search.early_stopping]
    # Without a penalty all groups would be equal.
    if search.num_beam_groups > 1 and search.diversity_penalty:
        config.num_beam_groups = search.num_beam_groups
        config.diversity_penalty = search.diversity_penalty


def _set_assistance(
    config: genai.GenerationConfig, params: SamplingParams, assistance: DraftSource
) -> None:
    """Sets the number of draft tokens, without which a pipeline with a draft model fails."""
    threshold = params.assistant_confidence_threshold
    if assistance.draft_model and threshold:
        config.assistant_confidence_threshold = threshold
    else:
        config.num_assistant_tokens = num_assistant_tokens(params)
    if assistance.prompt_lookup:
        config.max_ngram_size = params.max_ngram_size or DEFAULT_MAX_NGRAM_SIZE


def structured_output(grammar: Grammar) -> genai.StructuredOutputConfig:
    """Returns a grammar in the pipeline's format. Raises AttributeError, KeyError, TypeError or
    ValueError if the grammar's source does not match its kind."""
    config = genai.StructuredOutputConfig()
    if grammar.tree is not None or grammar.kind not in _MEMBERS:
        config.structural_tags_config = structural_tag(grammar)
    elif grammar.kind is GrammarKind.JSON_SCHEMA:
        config.grammar = json_rules(json.loads(grammar.source, parse_int=integer_of))
    elif grammar.kind is GrammarKind.JSON_OBJECT:
        config.grammar = json_rules({"type": "object"})
    else:
        setattr(config, _MEMBERS[grammar.kind], grammar.source)
    return config


_MEMBERS: Final[Mapping[GrammarKind, str]] = {
    GrammarKind.JSON_SCHEMA: "grammar",
    GrammarKind.JSON_OBJECT: "grammar",
    GrammarKind.REGEX: "regex",
    GrammarKind.GRAMMAR: "grammar",
}
"""The configuration member for each kind of grammar whose source is passed unchanged or as
rules."""
