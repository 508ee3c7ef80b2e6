"""A hybrid model says the same whatever becomes of its states: shared, copied, cached, dropped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.determinism import CACHE_TOKENS, make_requests, run, run_alone, ways
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model import kv_cache
from fastovms.engine.model import model as model_module
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.params import BeamSearch, GenerationRequest
from tests.engine.engines import Texts, full_engine, greedy, texts
from tests.engine.stored_engine import request, stored_engine

LFM2 = Path(__file__).parents[2] / "models" / "architectures" / "lfm2"
VOCAB_SIZE = 128
NUM_TOKENS = 24
PLAIN = EngineConfig(enable_prefix_caching=False, enable_prompt_lookup=False)


@pytest.fixture(scope="module", params=[1, 3])
def model(request: pytest.FixtureRequest) -> PagedModel:
    """With blocks of one page, and of several, as for models with large states."""

    def inputs_of(compiled: object) -> list[kv_cache.CacheInput]:
        inputs = kv_cache.cache_inputs(compiled)  # type: ignore[arg-type]
        return [one if one.is_state else replace(one, num_pages=request.param) for one in inputs]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "cache_inputs", inputs_of)
        made = load_model(LFM2, exact=True)
    assert made.block_size == 32 * request.param
    made.allocate_cache(CACHE_TOKENS // made.block_size)
    return made


def requests() -> list[GenerationRequest]:
    return [
        replace(one, prompt_token_ids=[token_id % VOCAB_SIZE for token_id in one.prompt_token_ids])
        for one in make_requests(20, NUM_TOKENS)
    ]


@pytest.mark.nightly(but=("[1]",))
def test_crowds_preemption_chunks_drafts_and_the_prefix_cache(model: PagedModel) -> None:
    alone = run_alone(model, requests())
    for way in ways(crowds=(2, 19), block_size=model.block_size, num_tokens=200 + NUM_TOKENS):
        if way.num_blocks is not None:  # large blocks are rarely more than one a text
            way = replace(way, num_blocks=max(3, way.num_blocks // 2))
        assert run(model, requests(), way) == alone, way.name


def generate(
    model: PagedModel, num_blocks: int, num_requests: int = 1, **params: Any
) -> tuple[Engine, Texts]:
    engine = full_engine(model, PLAIN, num_blocks=num_blocks, max_model_len=num_blocks * 32)
    prompts = [one.prompt_token_ids[:75] for one in requests() if len(one.prompt_token_ids) >= 75]
    asked = [
        greedy(str(number), prompt, ignore_eos=True, **params)
        for number, prompt in enumerate(prompts[:num_requests])
    ]
    return engine, texts(engine, *asked)


def test_samples_fork_the_state_of_their_prompt(model: PagedModel) -> None:
    _, alone = generate(model, 100, max_tokens=NUM_TOKENS)
    _, samples = generate(model, 100, max_tokens=NUM_TOKENS, n=4)
    assert len(samples) == 4
    assert all(text == alone["0", 0] for text in samples.values())


def test_beams_fork_their_states_and_lose_them_when_they_are_preempted(model: PagedModel) -> None:
    params: dict[str, Any] = {"max_tokens": 40, "n": 3, "beam_search": BeamSearch(num_beams=3)}
    _, expected = generate(model, 100, 3, **params)
    engine, found = generate(model, {32: 14, 96: 6}[model.block_size], 3, **params)
    assert engine.counters.num_preemptions
    assert found == expected


def test_states_are_kept_on_disk_with_keys_and_values(model: PagedModel, tmp_path: Path) -> None:
    stem = [position * position % VOCAB_SIZE for position in range(400)]
    asked = [
        request(str(number), prompt, max_tokens=NUM_TOKENS, ignore_eos=True)
        for number, prompt in enumerate((stem, stem[:310] + [5] * 90, stem[:330]))
    ]
    model.allocate_cache(CACHE_TOKENS // model.block_size)
    expected = [one.token_ids for one in run_alone(model, asked).values()]
    with stored_engine(tmp_path, model=model, num_blocks=64) as engine:
        assert engine.ask(asked[0]) == expected[0]
    for one, text in zip(asked, expected, strict=True):
        with stored_engine(tmp_path, model=model, num_blocks=64) as engine:
            for block_id in range(64):  # nothing is left of the first engine
                for row in model.block_rows(block_id):
                    row[:] = 1
            assert engine.ask(one) == text
            assert engine.num_restored >= 288
