"""Tests of `fastovms/engine/model/model.py`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from bench.determinism import CACHE_TOKENS, Way, make_requests, run, run_alone, ways
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import (
    PagedModel,
    RawLogits,
    as_float32,
    copy_float32,
    without_single_rows,
)
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.params import BeamSearch, GenerationRequest, SamplingParams
from tests.engine.bf16 import as_bf16, bf16_bits
from tests.engine.conftest import TINY_SHAPES
from tests.engine.engines import Outputs, fake_engine
from tests.engine.engines import run as run_all
from tests.engine.fake_model import FakeModel


def test_bfloat16_is_widened_exactly() -> None:
    values = [0.0, -0.0, 1.0, -1.0, 1.5, 2**-126, -(2.0**127), np.inf, -np.inf, np.nan]
    logits = np.array([values], np.float32)
    np.testing.assert_array_equal(as_float32(bf16_bits(logits)), logits)


@pytest.mark.parametrize("prepare", [np.ascontiguousarray, bf16_bits])
def test_copied_logits_are_float32(prepare: object) -> None:
    logits = np.array([1.5, -2, np.inf, -0.0], np.float32)
    copy = np.empty_like(logits)
    copy_float32(prepare(logits), copy)  # type: ignore[operator]
    np.testing.assert_array_equal(copy, logits)


class NoisyModel(FakeModel):
    """A model with many logits that are no integers but exact in bfloat16."""

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        logits = super().infer(inputs)
        positions = inputs.position_ids[inputs.sampled_token_indices]
        for row, position in zip(logits, positions, strict=True):
            row += np.random.default_rng(int(position)).normal(0, 9, row.size).astype(np.float32)
        return as_bf16(logits)


class Bf16Model(NoisyModel):
    def infer(self, inputs: StepInputs) -> RawLogits:  # type: ignore[override]
        return bf16_bits(super().infer(inputs))


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy with log probabilities": {"temperature": 0.0, "logprobs": 4, "prompt_logprobs": 2},
    "greedy with a penalty": {"temperature": 0.0, "repetition_penalty": 1.4, "logprobs": 1},
    "seeded": {"temperature": 0.9, "seed": 5},
    "seeded, filtered": {"top_k": 20, "top_p": 0.8, "min_p": 0.01, "seed": 6, "n": 2},
    "biased, with log probabilities": {"logit_bias": ((3, 9.0),), "logprobs": 3, "seed": 7},
    "beams": {"beam_search": BeamSearch(3), "logprobs": 1},
}


def outputs(model: FakeModel) -> Outputs:
    engine = fake_engine(model, num_blocks=400, max_model_len=200)
    asked = [
        GenerationRequest(name, list(range(1, 30)), SamplingParams(max_tokens=12, **settings))
        for name, settings in SETTINGS.items()
    ]
    return run_all(engine, *asked)


def test_outputs_of_bf16_logits_equal_those_of_f32_logits() -> None:
    expected = outputs(NoisyModel())
    assert len(expected) > len(SETTINGS)
    assert outputs(Bf16Model()) == expected


# The other requests of a step do not change a request's log probabilities, to the last bit.


BLOCK_SIZE = 4
SPARE = 99
NUM_TOKENS = 12


def inputs_of(*chunks: tuple[int, int], sampled: list[int]) -> StepInputs:
    """Returns inputs whose chunks belong to different sequences, each from a position to another
    one. Token ids are ten times the positions, and block numbers start at ten times the sequence's
    number."""
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
def test_single_row_sequences_are_doubled(inputs: StepInputs, expected: dict[str, object]) -> None:
    doubled = without_single_rows(inputs, block_size=BLOCK_SIZE, spare_block=SPARE)
    for name, value in expected.items():
        array_of_it = getattr(doubled, name)
        assert array_of_it.tolist() == value, name
        assert array_of_it.dtype == getattr(inputs, name).dtype


def test_a_double_leaves_what_others_keep_in_the_cache_alone(
    tiny_models: dict[str, Path],
) -> None:
    """The double reads beyond the end of a block, where another sequence's block begins."""
    model = load_model(tiny_models["tiny"], exact=True)
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


@pytest.mark.nightly(but=("[tiny]", "qwen3"))
@pytest.mark.parametrize("name", TINY_SHAPES)
def test_crowds_preemption_chunks_drafts_and_the_prefix_cache(
    tiny_models: dict[str, Path], name: str
) -> None:
    """`bench.determinism` tests this at full length."""
    model = load_model(tiny_models[name], exact=True)
    model.allocate_cache(CACHE_TOKENS // model.block_size)
    requests = make_requests(20, NUM_TOKENS)
    alone = run_alone(model, requests)
    for way in short_ways(model):
        assert run(model, requests, way) == alone, way.name


def short_ways(model: PagedModel) -> list[Way]:
    return list(ways(crowds=(2, 19), block_size=model.block_size, num_tokens=200 + NUM_TOKENS))


@pytest.mark.nightly
def test_two_thousand_seeded_samples_are_drawn_alike_in_any_crowd(
    tiny_models: dict[str, Path],
) -> None:
    """A sample near a boundary of the cumulative probabilities changes with the smallest
    difference."""
    model = load_model(tiny_models["tiny"], exact=True)
    model.allocate_cache(CACHE_TOKENS // model.block_size)
    sampled = [request for request in make_requests(4000, 2) if request.params.temperature > 0]
    requests = [
        replace(request, prompt_token_ids=request.prompt_token_ids[:24]) for request in sampled
    ]
    plain = EngineConfig(enable_prefix_caching=False, enable_prompt_lookup=False)
    alone = run(model, requests, Way("one at a time", replace(plain, max_num_seqs=1)))
    assert len(alone) == 2000
    assert run(model, requests, Way("crowd", replace(plain, max_num_seqs=41))) == alone


# Infer requests that get steps of different sizes one after another.


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_steps_may_be_of_any_number_of_rows(tiny_models: dict[str, Path], precision: str) -> None:
    properties = {"INFERENCE_PRECISION_HINT": precision}
    model = load_model(tiny_models["tiny"], properties=properties)
    model.allocate_cache(10)
    alone = [step(model, [token_id], [0]).copy() for token_id in range(40, 50)]
    for num_rows in (1, 3, 2, 0, 10, 1, 0, 7, 8, 10):
        rows = list(range(num_rows))
        logits = step(model, range(40, 50), rows)
        assert logits.shape == (num_rows, model.vocab_size)
        for row, expected in zip(logits, alone, strict=False):
            others = as_float32(expected[0])
            assert np.abs(as_float32(row) - others).max() < 0.05 * np.abs(others).max()


def step(model: PagedModel, token_ids: Iterable[int], rows: list[int]) -> RawLogits:
    """Returns a step with the first token of some sequences; `rows` are those with requested
    logits."""
    layout = StepLayout(model.block_size)
    for i, token_id in enumerate(token_ids):
        layout.add(array("q", [token_id]), 0, 1, array("i", [i]))
    return model.infer(layout.finish(array("q", rows)))


def logits_of(model: PagedModel) -> tuple[np.dtype[np.generic], NDArray[np.float32]]:
    """Returns the logits of a prompt's tokens, and their type."""
    model.allocate_cache(2)
    layout = StepLayout(model.block_size)
    layout.add(array("q", range(40, 60)), 0, 20, array("i", [1]))
    logits = model.infer(layout.finish(array("q", range(20))))
    return logits.dtype, as_float32(logits).copy()


@pytest.mark.nightly(but=("[tiny]", "mistral"))
@pytest.mark.parametrize("name", TINY_SHAPES)
def test_logits_in_half_precision_are_close_to_exact_ones(
    tiny_models: dict[str, Path], name: str
) -> None:
    is_capable = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precision, dtype = ("bf16", np.uint16) if is_capable else ("f32", np.float32)
    model = load_model(tiny_models[name], properties={"INFERENCE_PRECISION_HINT": precision})
    came_as, logits = logits_of(model)
    _, exact = logits_of(load_model(tiny_models[name], exact=True))
    assert came_as == dtype
    assert logits.shape == exact.shape == (20, model.vocab_size)
    assert np.abs(logits - exact).max() < 0.05 * np.abs(exact).max()
