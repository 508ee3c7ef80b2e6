"""Tests of models with different shapes, precisions and attention, compared with the reference
token by token."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.params import SamplingParams
from tests.engine.conftest import TINY_SHAPES
from tests.engine.engines import full_engine, text
from tests.engine.reference import EXACT, run, run_reference

NUM_BLOCKS = 100
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(20, 1500) for _ in range(length)] for length in (1, 32, 33, 300)]


def load(model_dir: Path, properties: dict[str, str] | None) -> PagedModel:
    model = load_model(model_dir, properties=properties)
    model.allocate_cache(NUM_BLOCKS)
    return model


@pytest.mark.nightly(but=("[tiny]", "qwen3"))
@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_SHAPES)
def test_greedy_tokens_equal_the_reference(
    tiny_models: dict[str, Path], prompts: list[list[int]], name: str
) -> None:
    """Small models are computed exactly by default."""
    expected = [
        output.generated_ids for output in run_reference(tiny_models[name], prompts, NUM_TOKENS)
    ]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    for properties in (EXACT, None):
        model = load(tiny_models[name], properties)
        for config in (EngineConfig(), EngineConfig(max_num_batched_tokens=50)):
            engine = full_engine(model, config, num_blocks=NUM_BLOCKS, max_model_len=1024)
            for _ in range(2):  # the second time from the prefix cache
                outputs = run(engine, prompts, params)
                assert [text(outputs[str(i), 0]) for i in range(len(prompts))] == expected
