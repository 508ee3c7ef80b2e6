from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.config.engine_config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.raw_logits import RawLogits, as_float32, copy_float32
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.params import BeamSearch, GenerationRequest, SamplingParams
from tests.engine.bf16 import as_bf16, bf16_bits
from tests.engine.fake_model import FakeModel


def test_bfloat16_is_widened_exactly() -> None:
    values = [0.0, -0.0, 1.0, -1.0, 1.5, 2**-126, -(2.0**127), np.inf, -np.inf, np.nan]
    logits = np.array([values], np.float32)
    np.testing.assert_array_equal(as_float32(bf16_bits(logits)), logits)


def test_float32_stays_the_same_array() -> None:
    logits = np.ones((2, 3), np.float32)
    assert np.shares_memory(as_float32(logits), logits)


@pytest.mark.parametrize("prepare", [np.ascontiguousarray, bf16_bits])
def test_a_copy_is_float32(prepare: object) -> None:
    logits = np.array([1.5, -2, np.inf, -0.0], np.float32)
    copy = np.empty_like(logits)
    copy_float32(prepare(logits), copy)  # type: ignore[operator]
    np.testing.assert_array_equal(copy, logits)


class NoisyModel(FakeModel):
    """Whose logits are many, and no whole numbers, but those of bfloat16."""

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        logits = super().infer(inputs)
        positions = inputs.position_ids[inputs.sampled_token_indices]
        for row, position in zip(logits, positions, strict=True):
            row += np.random.default_rng(int(position)).normal(0, 9, row.size).astype(np.float32)
        return as_bf16(logits)


class Bf16Model(NoisyModel):
    def infer(self, inputs: StepInputs) -> RawLogits:  # type: ignore[override]
        return bf16_bits(super().infer(inputs))


SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "greedy with log probabilities": {"temperature": 0.0, "logprobs": 4, "prompt_logprobs": 2},
    "greedy with a penalty": {"temperature": 0.0, "repetition_penalty": 1.4, "logprobs": 1},
    "seeded": {"temperature": 0.9, "seed": 5},
    "seeded, filtered": {"top_k": 20, "top_p": 0.8, "min_p": 0.01, "seed": 6, "n": 2},
    "biased, with log probabilities": {"logit_bias": ((3, 9.0),), "logprobs": 3, "seed": 7},
    "beams": {"beam_search": BeamSearch(3), "logprobs": 1},
}


def outputs(model: FakeModel) -> dict[tuple[str, int], list[object]]:
    model.allocate_cache(400)
    engine = Engine(
        model, EngineConfig(), num_blocks=400, max_model_len=200, clock=lambda: 0.0
    )  # where steps take no time the same tokens come at once
    for name, settings in SETTINGS.items():
        params = SamplingParams(max_tokens=12, **settings)  # type: ignore[arg-type]
        engine.add(GenerationRequest(name, list(range(1, 30)), params))
    texts: dict[tuple[str, int], list[object]] = {}
    while engine.has_work:
        for request_id, output in engine.step():
            texts.setdefault((request_id, output.index), []).append(output)
    return texts


def test_all_that_is_made_of_logits_is_the_same() -> None:
    expected = outputs(NoisyModel())
    assert len(expected) > len(SETTINGS)
    assert outputs(Bf16Model()) == expected
