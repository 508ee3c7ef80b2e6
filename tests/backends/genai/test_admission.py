"""What runs beside what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastovms.backends.genai.admission import Admission, PipelineNeed, longest_context
from fastovms.backends.genai.pipeline import CacheCapacity
from fastovms.backends.genai.support import has_prefix_cache, token_budget
from fastovms.config.engine_config import EngineConfig
from fastovms.params import GenerationRequest, SamplingParams, TextPrompt

LOOKUP = {"enable_prompt_lookup": True}


def admission(**config: object) -> Admission:
    engine = EngineConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **config})  # type: ignore[arg-type]
    return Admission(engine, CacheCapacity(num_blocks=20, block_size=32), max_model_len=640)


def asked(
    *, images: int = 0, size: int = 1, prompt: int = 10, **params: object
) -> GenerationRequest:
    pictures = [np.zeros((size, size, 3), np.uint8)] * images
    text = TextPrompt("a", pictures) if images else None
    return GenerationRequest("r", [1] * prompt, SamplingParams(**params), prompt=text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "request_", "num_seqs", "expected"),
    [
        ({}, asked(max_tokens=600), 1, PipelineNeed(1, 0, 1)),
        ({}, asked(prompt=32), 4, PipelineNeed(4, 0, 2)),
        ({}, asked(images=1), 1, PipelineNeed(1, 0, 9)),
        ({}, asked(images=2, size=560), 1, PipelineNeed(1, 0, 21)),
        ({}, asked(images=1, size=560), 1, PipelineNeed(1, 0, 13)),
        ({"draft_model": Path("d")}, asked(), 1, PipelineNeed(1, 0, 1)),
        (LOOKUP, asked(max_tokens=5), 1, PipelineNeed(1, 6, 1)),
        (LOOKUP, asked(max_tokens=20, num_assistant_tokens=1), 1, PipelineNeed(1, 2, 1)),
        (LOOKUP, asked(max_tokens=20, num_assistant_tokens=2), 1, PipelineNeed(1, 3, 2)),
        (LOOKUP, asked(max_tokens=20, num_assistant_tokens=0), 1, PipelineNeed(1, 6, 2)),
        (LOOKUP, asked(), 1, PipelineNeed(1, 6, 21)),
        (LOOKUP, asked(max_tokens=10_000), 1, PipelineNeed(1, 6, 21)),
        (LOOKUP, asked(max_tokens=5, images=1), 1, PipelineNeed(1, 6, 21)),
    ],
)
def test_what_a_request_takes(config, request_, num_seqs, expected):
    assert admission(**config).need(request_, num_seqs) == expected


@pytest.mark.parametrize(
    ("running", "need", "has_room"),
    [
        ([], PipelineNeed(1), True),
        ([PipelineNeed(7)], PipelineNeed(1), True),
        ([PipelineNeed(7)], PipelineNeed(2), False),
        ([], PipelineNeed(1, 33, 21), True),
        ([PipelineNeed(1, 31, 1)], PipelineNeed(1, 33, 1), True),
        ([PipelineNeed(1, 32, 1)], PipelineNeed(1, 33, 1), False),
        ([PipelineNeed(1, 1, 10)], PipelineNeed(1, 1, 10), True),
        ([PipelineNeed(1, 1, 10)], PipelineNeed(1, 1, 11), False),
    ],
)
def test_room(running, need, has_room):
    assert admission(**LOOKUP).room(running).has(need) is has_room


def test_room_is_taken():
    room = admission().room([PipelineNeed(6)])
    room.take(PipelineNeed(2))
    assert not room.has(PipelineNeed(1))


def test_the_longest_context_leaves_room_for_drafts():
    capacity = CacheCapacity(num_blocks=20, block_size=32)
    assert longest_context(EngineConfig(), capacity) == 640
    assert longest_context(EngineConfig(enable_prompt_lookup=True), capacity) == 608
    assert longest_context(EngineConfig(draft_model=Path("d")), capacity) == 608


def test_one_sequence_with_its_drafts_fits_a_step():
    assert token_budget(EngineConfig(max_num_batched_tokens=8)) == 8
    assert token_budget(EngineConfig(max_num_batched_tokens=8, enable_prompt_lookup=True)) == 33
    assert token_budget(EngineConfig(max_num_batched_tokens=64, enable_prompt_lookup=True)) == 64


def test_drafts_of_a_model_do_without_the_prefix_cache():
    assert has_prefix_cache(EngineConfig())
    assert has_prefix_cache(EngineConfig(enable_prompt_lookup=True))
    assert not has_prefix_cache(EngineConfig(enable_prefix_caching=False))
    assert not has_prefix_cache(EngineConfig(draft_model=Path("d")))
