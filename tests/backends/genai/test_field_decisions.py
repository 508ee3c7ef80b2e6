"""The genai backend has decided about every field that a request may have."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import openvino_genai as genai
import pytest

from fastovms.backends.genai.field_decisions import (
    REQUEST_FIELDS,
    SAMPLING_FIELDS,
    Handling,
    check_fields,
)
from fastovms.backends.genai.generation_config import generation_config
from fastovms.backends.genai.support import Assistance
from fastovms.errors import FieldFault
from fastovms.params import BeamSearch, GenerationRequest, Grammar, GrammarKind, SamplingParams

WHERE: Final = {"temperature": 0.7, "eos_token_ids": frozenset({2})}
"""Where other fields can be seen: greedy texts know neither seeds nor filters."""

VALUES: Final[dict[str, object]] = {
    "max_tokens": 3, "temperature": 0.3, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "seed": 7, "n": 2,
    "ignore_eos": True, "eos_token_ids": frozenset({3}), "stop_token_ids": frozenset({4}),
    "min_tokens": 2, "repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.5,
    "logit_bias": ((1, 2.0),), "allowed_token_ids": (1,), "bad_words_token_ids": ((1,),),
    "logprobs": 1, "prompt_logprobs": 1, "grammar": Grammar(GrammarKind.REGEX, "a", "guided_regex"),
    "beam_search": BeamSearch(2), "num_assistant_tokens": 3, "max_ngram_size": 2,
    "assistant_confidence_threshold": 0.5, "stop_strings": ("a",),
}  # fmt: skip
"""A value of each field that asks for something."""

DRAFT_MODEL: Final = frozenset({"assistant_confidence_threshold"})


def config_members(assistance: Assistance, **given: object) -> dict[str, object]:
    """What the pipeline is told."""
    config = generation_config(
        SamplingParams(**{**WHERE, **given}),  # type: ignore[arg-type]
        index=0,
        seed=1,
        max_length=100,
        max_new_tokens=7,
        assistance=assistance,
    )
    names = [name for name in dir(genai.GenerationConfig) if not name.startswith("_")]
    members = {name: getattr(config, name) for name in names}
    return {name: str(value) for name, value in members.items() if not callable(value)}


@pytest.mark.parametrize(
    ("kind", "decisions"),
    [(SamplingParams, SAMPLING_FIELDS), (GenerationRequest, REQUEST_FIELDS)],
)
def test_no_field_is_forgotten(kind: type, decisions: dict[str, object]) -> None:
    assert set(decisions) == {field.name for field in fields(kind)}


@pytest.mark.parametrize(
    "name", [name for name, d in SAMPLING_FIELDS.items() if d.handling is Handling.CONFIG]
)
def test_what_is_handed_on_changes_what_the_pipeline_is_told(name: str) -> None:
    is_draft = name in DRAFT_MODEL
    assistance = Assistance(prompt_lookup=not is_draft, draft_model=is_draft)
    given = {name: VALUES[name]}
    assert config_members(assistance) == config_members(assistance)
    assert config_members(assistance, **given) != config_members(assistance)


@pytest.mark.parametrize(
    "name", [name for name, d in SAMPLING_FIELDS.items() if d.handling is Handling.REFUSED]
)
def test_what_is_refused_names_the_field(name: str) -> None:
    with pytest.raises(FieldFault, match=SAMPLING_FIELDS[name].param or name):
        check_fields(SamplingParams(**{name: VALUES[name]}))  # type: ignore[arg-type]


@pytest.mark.parametrize("decisions", [SAMPLING_FIELDS, REQUEST_FIELDS])
def test_what_is_ignored_has_a_reason(decisions: dict[str, object]) -> None:
    assert all(d.why for d in decisions.values() if d.handling is Handling.IGNORED)


def test_each_field_has_a_value_here() -> None:
    assert set(VALUES) == set(SAMPLING_FIELDS)
