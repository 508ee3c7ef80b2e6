"""Draft models over the real runtime: the demo model as its own, and one that knows nothing.

All in float32 throughout, as the other comparisons of exact tokens.
"""

from __future__ import annotations

import random

import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.params import SamplingParams
from fastovms.parts.drafts.draft_model import DraftModel
from fastovms.server_config import DEMO_MODEL
from tests.engine.engines import full_engine
from tests.engine.test_reference import EXACT, run, tokens

NUM_BLOCKS = 100
Texts = dict[tuple[int, int], list[int]]


@pytest.fixture(scope="module")
def target() -> PagedModel:
    model = load_model(DEMO_MODEL, properties=EXACT)
    model.allocate_cache(NUM_BLOCKS)
    return model


@pytest.fixture(scope="module")
def twin() -> PagedModel:
    return load_model(DEMO_MODEL, properties=EXACT)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    directory = tmp_path_factory.mktemp("stranger")
    write_model(SHAPES["tiny"], directory)
    return load_model(directory, properties=EXACT)


def draft_model(model: PagedModel, num_tokens: int) -> DraftModel:
    assert model.vocab_size is not None
    draft = DraftModel(
        model, num_token_ids=model.vocab_size, max_model_len=2048, max_num_batched_tokens=256
    )
    draft.allocate_cache(num_tokens)
    return draft


def generate(
    target: PagedModel, draft: DraftModel | None, params: SamplingParams
) -> tuple[Texts, Engine]:
    rng = random.Random(0)
    prompts = [[rng.randrange(20, 1000) for _ in range(length)] for length in (1, 31, 33, 200)]
    engine = full_engine(
        target,
        EngineConfig(enable_prompt_lookup=False),
        num_blocks=NUM_BLOCKS,
        max_model_len=2048,
        draft_model=draft,
        clock=lambda: 0.0,  # where steps take no time all drafts pay
    )
    outputs = run(engine, prompts, params)
    return {key: tokens(of) for key, of in outputs.items()}, engine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "cache"),
    [
        (SamplingParams(temperature=0, max_tokens=30, ignore_eos=True), 2048),
        (SamplingParams(temperature=1, seed=1, max_tokens=30, ignore_eos=True, n=2), 2048),
        (SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, presence_penalty=1), 256),
    ],
    ids=["greedy", "seeded", "not enough blocks"],
)
def test_draft_models_do_not_change_the_generated_texts(
    target: PagedModel,
    twin: PagedModel,
    stranger: PagedModel,
    params: SamplingParams,
    cache: int,
) -> None:
    plain, _ = generate(target, None, params)
    for model in (twin, stranger):
        draft = draft_model(model, cache)
        drafted, engine = generate(target, draft, params)
        assert drafted == plain
        assert engine.counters.num_draft_tokens > 0
        assert model is stranger or engine.counters.num_accepted_tokens > 0
        assert draft.blocks.num_free_blocks == draft.blocks.num_blocks


@pytest.mark.slow
def test_a_twin_is_always_right_and_a_stranger_never(
    target: PagedModel, twin: PagedModel, stranger: PagedModel
) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, num_assistant_tokens=4)
    _, engine = generate(target, draft_model(twin, 2048), params)
    assert engine.counters.num_accepted_tokens == engine.counters.num_draft_tokens
    assert engine.counters.num_steps < 14
    _, engine = generate(target, draft_model(stranger, 2048), params)
    assert engine.counters.num_accepted_tokens < 0.1 * engine.counters.num_draft_tokens
