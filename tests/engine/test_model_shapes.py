"""Models of different shapes, precisions and attention, against the reference token by token."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.params import FinishReason, SamplingParams
from tests.engine.conftest import TINY_SHAPES
from tests.engine.engines import full_engine
from tests.engine.reference import EXACT, run, run_reference, tokens

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


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_SHAPES)
def test_greedy_tokens_equal_the_reference(
    tiny_models: dict[str, Path], prompts: list[list[int]], name: str
) -> None:
    """Small models are computed exactly without being asked to."""
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
                assert [tokens(outputs[i, 0]) for i in range(len(prompts))] == expected


@pytest.mark.slow
def test_any_of_several_end_tokens_ends_a_text(tiny_models: dict[str, Path]) -> None:
    model = load(tiny_models["tiny"], None)
    engine = full_engine(model, EngineConfig(), num_blocks=NUM_BLOCKS, max_model_len=1024)
    prompt = list(range(30, 60))
    text = tokens(run(engine, [prompt], SamplingParams(temperature=0, max_tokens=20))[0, 0])
    for ends in ({text[5], text[9]}, {text[9], text[3]}, {text[2], 7}):
        params = SamplingParams(temperature=0, max_tokens=20, eos_token_ids=frozenset(ends))
        outputs = run(engine, [prompt], params)[0, 0]
        first = min(text.index(token_id) for token_id in ends if token_id in text)
        assert tokens(outputs) == text[:first]
        assert outputs[-1].finish_reason is FinishReason.STOP
