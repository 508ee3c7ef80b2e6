"""Beam searches against `openvino_genai.ContinuousBatchingPipeline` on the demo model, token by
token, in float32 throughout: see `test_reference`."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import openvino as ov
import openvino_genai
import pytest

from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.params import (
    BeamSearch,
    EarlyStopping,
    FinishReason,
    SamplingParams,
)
from fastovms.server_config import DEMO_MODEL
from tests.engine import engines, reference
from tests.engine.engines import full_engine
from tests.engine.reference import EXACT

NUM_BLOCKS = 200
NUM_TOKENS = 12
STOP_CRITERIA = {
    EarlyStopping.EARLY: openvino_genai.StopCriteria.EARLY,
    EarlyStopping.HEURISTIC: openvino_genai.StopCriteria.HEURISTIC,
    EarlyStopping.NEVER: openvino_genai.StopCriteria.NEVER,
}


class Text(NamedTuple):
    """A text; `token_ids` exclude the end token."""

    token_ids: list[int]
    has_ended: bool


Texts = list[list[Text]]
"""The best texts of each prompt."""


@pytest.fixture(scope="module")
def model() -> PagedModel:
    model = load_model(DEMO_MODEL, properties=EXACT)
    model.allocate_cache(NUM_BLOCKS)
    return model


@pytest.fixture(scope="module")
def pipeline() -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1
    return openvino_genai.ContinuousBatchingPipeline(str(DEMO_MODEL), scheduler, "CPU", EXACT)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(1)
    prompts = [[rng.randrange(20, 1000) for _ in range(length)] for length in (1, 31, 32, 64, 90)]
    return [*prompts, [*prompts[-1], 21, 22]]


@pytest.fixture(scope="module")
def common_token(
    pipeline: openvino_genai.ContinuousBatchingPipeline, prompts: list[list[int]]
) -> int:
    """Returns a frequent token of texts: as their end token it ends many, early and late."""
    texts = run_reference(pipeline, prompts, BeamSearch(4), n=4, end_token_id=0)
    tokens = [token_id for of in texts for text in of for token_id in text.token_ids]
    return max(set(tokens), key=lambda token_id: (tokens.count(token_id), token_id))


def run_reference(
    pipeline: openvino_genai.ContinuousBatchingPipeline,
    prompts: list[list[int]],
    search: BeamSearch,
    *,
    n: int,
    end_token_id: int,
) -> Texts:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = NUM_TOKENS
    config.num_beams = search.num_beams
    config.num_beam_groups = search.num_beam_groups
    config.diversity_penalty = search.diversity_penalty
    config.length_penalty = search.length_penalty
    config.stop_criteria = STOP_CRITERIA[search.early_stopping]
    config.num_return_sequences = n
    config.set_eos_token_id(end_token_id)
    tensors = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
    results = pipeline.generate(tensors, [config] * len(prompts))
    return [
        [
            Text([t for t in token_ids if t != end_token_id], end_token_id in token_ids)
            for token_ids in result.m_generation_ids
        ]
        for result in results
    ]


def run(
    engine: Engine, prompts: list[list[int]], search: BeamSearch, *, n: int, end_token_id: int
) -> Texts:
    params = SamplingParams(
        max_tokens=NUM_TOKENS, n=n, eos_token_ids=frozenset({end_token_id}), beam_search=search
    )
    outputs = reference.run(engine, prompts, params)
    return [
        [
            Text(engines.text(of), of[-1].finish_reason is FinishReason.STOP)
            for of in (outputs[str(i), index] for index in range(n))
        ]
        for i in range(len(prompts))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "n"),
    [
        (BeamSearch(2), 1),
        (BeamSearch(3), 3),
        (BeamSearch(8), 5),
        (BeamSearch(4, early_stopping=EarlyStopping.EARLY), 4),
        (BeamSearch(4, early_stopping=EarlyStopping.NEVER), 4),
        (BeamSearch(4, length_penalty=0), 4),
        (BeamSearch(4, length_penalty=2), 4),
        (BeamSearch(4, length_penalty=2, early_stopping=EarlyStopping.NEVER), 4),
        (BeamSearch(4, length_penalty=-1), 4),
        (BeamSearch(4, length_penalty=-1, early_stopping=EarlyStopping.NEVER), 4),
        (BeamSearch(4, num_beam_groups=2, diversity_penalty=0.7), 4),
        (BeamSearch(3, num_beam_groups=3, diversity_penalty=0.3), 3),
        (BeamSearch(6, num_beam_groups=2, diversity_penalty=2.0, length_penalty=0), 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("ends", ["often", "never"])
def test_texts_equal_the_reference(
    model: PagedModel,
    pipeline: openvino_genai.ContinuousBatchingPipeline,
    prompts: list[list[int]],
    common_token: int,
    search: BeamSearch,
    n: int,
    ends: str,
) -> None:
    end_token_id = common_token if ends == "often" else 0
    expected = run_reference(pipeline, prompts, search, n=n, end_token_id=end_token_id)
    engine = full_engine(model, EngineConfig(), num_blocks=NUM_BLOCKS, max_model_len=2048)
    assert run(engine, prompts, search, n=n, end_token_id=end_token_id) == expected
