"""That nothing a step has in it shows in a request's log probabilities, to the last bit."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.determinism import CACHE_TOKENS, Way, make_requests, run, run_alone, ways
from fastovms.config.engine_config import EngineConfig
from fastovms.engine.model.batch_invariance import without_single_rows
from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from tests.engine.conftest import TINY_SHAPES

BLOCK_SIZE = 4
SPARE = 99
NUM_TOKENS = 12


def inputs_of(*chunks: tuple[int, int], sampled: list[int]) -> StepInputs:
    """Each chunk is from a position to another of a sequence of its own, whose tokens are ten
    times as many as their positions, and whose blocks begin at ten times its number."""
    layout = StepLayout(BLOCK_SIZE)
    for number, (start, end) in enumerate(chunks):
        blocks = array("i", range(10 * number, 10 * number + -(-end // BLOCK_SIZE)))
        layout.add(array("q", range(0, 10 * end, 10)), start, end, blocks)
    return layout.finish(array("q", sampled))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (
            inputs_of((5, 6), (0, 3), (7, 8), sampled=[0, 3, 4]),
            {
                "input_ids": [50, 50, 0, 10, 20, 70, 70],
                "position_ids": [5, 5, 0, 1, 2, 7, 7],
                "past_lens": [5, 0, 7],
                "subsequence_begins": [0, 2, 5, 7],
                "block_indices": [0, 1, 10, 20, 21, SPARE],
                "block_indices_begins": [0, 2, 3, 6],
                "max_context_len": 9,
                "sampled_token_indices": [0, 4, 5],
            },
        ),
        (
            inputs_of((0, 3), (3, 4), sampled=[3]),
            {
                "input_ids": [0, 10, 20, 30, 30],
                "subsequence_begins": [0, 3, 5],
                "block_indices": [0, 10, SPARE],
                "block_indices_begins": [0, 1, 3],
                "max_context_len": 5,
                "sampled_token_indices": [3, 3],
            },
        ),
        (inputs_of((2, 4), sampled=[1]), {"sampled_token_indices": [1, 1], "max_context_len": 4}),
    ],
)
def test_nothing_is_single(inputs: StepInputs, expected: dict[str, object]) -> None:
    doubled = without_single_rows(inputs, block_size=BLOCK_SIZE, spare_block=SPARE)
    for name, value in expected.items():
        array_of_it = getattr(doubled, name)
        assert array_of_it.tolist() == value, name
        assert array_of_it.dtype == getattr(inputs, name).dtype


def test_what_has_nothing_single_stays() -> None:
    inputs = inputs_of((0, 3), (2, 4), sampled=[2, 4])
    assert without_single_rows(inputs, block_size=BLOCK_SIZE, spare_block=SPARE) is inputs


def test_a_double_leaves_what_others_keep_in_the_cache_alone(
    tiny_models: dict[str, Path],
) -> None:
    """It goes behind the end of a block, and the block after it is somebody else's."""
    model = PagedModel.load(tiny_models["tiny"], exact=True)
    model.allocate_cache(3)
    tokens = array("q", range(40, 40 + 2 * model.block_size))

    def infer(start: int, end: int, *blocks: int) -> bytes:
        layout = StepLayout(model.block_size)
        last = layout.add(tokens, start, end, array("i", blocks))
        return model.infer(layout.finish(array("q", [last]))).tobytes()

    size = model.block_size
    other = infer(0, size, 1)
    infer(0, size - 1, 0)
    alone = infer(size - 1, size, 0)
    assert alone == other
    assert infer(size - 1, size, 1) == other
    assert np.isfinite(np.frombuffer(alone, np.float32)).all()


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_crowds_preemption_chunks_drafts_and_the_prefix_cache(
    tiny_models: dict[str, Path], name: str
) -> None:
    """The full length of it is `bench.determinism`."""
    model = PagedModel.load(tiny_models[name], exact=True)
    model.allocate_cache(CACHE_TOKENS // model.block_size)
    requests = make_requests(20, NUM_TOKENS)
    alone = run_alone(model, requests)
    for way in short_ways(model):
        assert run(model, requests, way) == alone, way.name


def short_ways(model: PagedModel) -> list[Way]:
    return list(ways(crowds=(2, 19), block_size=model.block_size, num_tokens=200 + NUM_TOKENS))


def test_two_thousand_seeded_samples_are_drawn_alike_in_any_crowd(
    tiny_models: dict[str, Path],
) -> None:
    """A draw near a boundary of the cumulative probabilities tips over by the least noise."""
    model = PagedModel.load(tiny_models["tiny"], exact=True)
    model.allocate_cache(CACHE_TOKENS // model.block_size)
    sampled = [request for request in make_requests(4000, 2) if request.params.temperature > 0]
    requests = [
        replace(request, prompt_token_ids=request.prompt_token_ids[:24]) for request in sampled
    ]
    plain = EngineConfig(enable_prefix_caching=False, enable_prompt_lookup=False)
    alone = run(model, requests, Way("one at a time", replace(plain, max_num_seqs=1)))
    assert len(alone) == 2000
    assert run(model, requests, Way("crowd", replace(plain, max_num_seqs=41))) == alone
