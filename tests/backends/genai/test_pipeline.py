"""Tests of `fastovms/backends/genai/pipeline.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE
from fastovms.params import FinishReason, GenerationRequest, SamplingParams, TextPrompt
from fastovms.parts.genai.pipeline import (
    Admission,
    CacheCapacity,
    RequiredResources,
    longest_context,
    properties_of,
)
from fastovms.parts.genai.support import has_prefix_cache, token_budget
from tests.backends.genai.fake_pipeline import FakePipeline
from tests.backends.genai.test_worker import engine_over, finish, model, with_images
from tests.engine.engines import greedy as request

# Prompts in the pipeline's format.


def test_a_text_of_a_vision_model_loses_the_token_that_the_pipeline_puts_first():
    pipeline = FakePipeline()
    engine = engine_over(pipeline, model(takes_images=True))
    for request_id, text in (("a", "<s>hi"), ("b", "hi")):
        engine.add(with_images(request_id, text, 0, max_tokens=1))
    finish(engine)
    assert [added[0] for added in pipeline.added] == ["hi", "hi"]


def test_tokens_for_a_vision_model_must_be_those_of_a_text():
    pipeline = FakePipeline()
    engine = engine_over(pipeline, model(takes_images=True))
    engine.add(request("a", [96, 40, 41], max_tokens=1))
    engine.add(request("b", [40, 41], max_tokens=1))
    outputs = finish(engine)
    assert pipeline.added[0][:2] == ("()", [])
    assert outputs["a"][0].finish_reason is FinishReason.LENGTH
    assert outputs["b"][0].refusal.param == "prompt"


# The properties with which the pipeline is loaded.


PRECISION, KV_PRECISION = "INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"
GROUP = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
EXACT = {PRECISION: "f32", KV_PRECISION: "f32", **GROUP}
SMALL, LARGE = EXACT_WEIGHTS_SIZE, EXACT_WEIGHTS_SIZE + 1


@pytest.mark.parametrize(
    ("given", "precision", "device", "weights_size", "expected"),
    [
        ({}, "auto", "CPU", LARGE, {}),
        ({"NUM_STREAMS": 2}, "auto", "CPU", LARGE, {"NUM_STREAMS": 2}),
        ({KV_PRECISION: "u8"}, "auto", "CPU", LARGE, {KV_PRECISION: "u8"}),
        ({KV_PRECISION: "f32"}, "auto", "CPU", LARGE, EXACT),
        ({}, "exact", "CPU", LARGE, EXACT),
        ({}, "auto", "CPU", SMALL, EXACT),
        ({KV_PRECISION: "u8"}, "exact", "CPU", LARGE, {**EXACT, KV_PRECISION: "u8"}),
        ({PRECISION: "bf16"}, "auto", "CPU", SMALL, {PRECISION: "bf16", **GROUP}),
        ({KV_PRECISION: "bf16"}, "auto", "CPU", SMALL, {KV_PRECISION: "bf16"}),
        ({}, "auto", "GPU", SMALL, {}),
        ({}, "exact", "GPU.1", LARGE, {PRECISION: "f32"}),
    ],
)
def test_plugin_properties_follow_precision_device_and_weights_size(
    given, precision, device, weights_size, expected
):
    config = EngineConfig(plugin_config=given, precision=precision)
    assert properties_of(config, device, weights_size=weights_size) == expected


# The requests that run at the same time.


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
        ({}, asked(max_tokens=600), 1, RequiredResources(1, 0, 1)),
        ({}, asked(prompt=32), 4, RequiredResources(4, 0, 2)),
        ({}, asked(images=1), 1, RequiredResources(1, 0, 9)),
        ({}, asked(images=2, size=560), 1, RequiredResources(1, 0, 21)),
        ({}, asked(images=1, size=560), 1, RequiredResources(1, 0, 13)),
        ({"draft_model": Path("d")}, asked(), 1, RequiredResources(1, 0, 1)),
        (LOOKUP, asked(max_tokens=5), 1, RequiredResources(1, 6, 1)),
        (LOOKUP, asked(max_tokens=20, num_assistant_tokens=1), 1, RequiredResources(1, 2, 1)),
        (LOOKUP, asked(max_tokens=20, num_assistant_tokens=2), 1, RequiredResources(1, 3, 2)),
        (LOOKUP, asked(max_tokens=20, num_assistant_tokens=0), 1, RequiredResources(1, 6, 2)),
        (LOOKUP, asked(), 1, RequiredResources(1, 6, 21)),
        (LOOKUP, asked(max_tokens=10_000), 1, RequiredResources(1, 6, 21)),
        (LOOKUP, asked(max_tokens=5, images=1), 1, RequiredResources(1, 6, 21)),
    ],
)
def test_request_needs_sequences_and_blocks(config, request_, num_seqs, expected):
    assert admission(**config).need(request_, num_seqs) == expected


@pytest.mark.parametrize(
    ("running", "need", "has_room"),
    [
        ([], RequiredResources(1), True),
        ([RequiredResources(7)], RequiredResources(1), True),
        ([RequiredResources(7)], RequiredResources(2), False),
        ([], RequiredResources(1, 33, 21), True),
        ([RequiredResources(1, 31, 1)], RequiredResources(1, 33, 1), True),
        ([RequiredResources(1, 32, 1)], RequiredResources(1, 33, 1), False),
        ([RequiredResources(1, 1, 10)], RequiredResources(1, 1, 10), True),
        ([RequiredResources(1, 1, 10)], RequiredResources(1, 1, 11), False),
    ],
)
def test_room_takes_a_need_when_empty_or_within_limits(running, need, has_room):
    assert admission(**LOOKUP).room(running).has(need) is has_room


def test_taken_room_is_not_free():
    room = admission().room([RequiredResources(6)])
    room.take(RequiredResources(2))
    assert not room.has(RequiredResources(1))


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
