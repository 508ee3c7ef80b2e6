from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.config import EngineConfig
from fastovms.engine import engine as engine_module
from fastovms.engine.engine import Engine
from fastovms.engine.inputs import StepInputs
from fastovms.engine.raw_logits import (
    ParallelLikeliest,
    RawLogits,
    as_float32,
    each_likeliest,
    likeliest,
)
from fastovms.params import BeamSearch, GenerationRequest, SamplingParams
from tests.engine.fake_model import FakeModel


def bf16_bits(logits: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Of numbers cut down to bfloat16."""
    return (logits.view(np.uint32) >> 16).astype(np.uint16)


def as_bf16(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return as_float32(bf16_bits(logits))


def test_bfloat16_is_widened_exactly() -> None:
    values = [0.0, -0.0, 1.0, -1.0, 1.5, 2**-126, -(2.0**127), np.inf, -np.inf, np.nan]
    logits = np.array([values], np.float32)
    np.testing.assert_array_equal(as_float32(bf16_bits(logits)), logits)


def test_float32_stays_the_same_array() -> None:
    logits = np.ones((2, 3), np.float32)
    assert np.shares_memory(as_float32(logits), logits)


ROWS = [
    [-3, -1, -2],
    [-0.0, -1, -2],
    [-1, 0.0, -2],
    [1, 3, 3],
    [-np.inf, -np.inf, -5],
    [-np.inf, np.inf, 7],
]
LIKELIEST = [1, 0, 1, 1, 2, 1]


@pytest.mark.parametrize("prepare", [np.ascontiguousarray, bf16_bits])
def test_the_first_of_the_largest_logits(prepare: object) -> None:
    logits = prepare(np.array(ROWS, np.float32))  # type: ignore[operator]
    assert likeliest(logits) == LIKELIEST
    assert likeliest(logits[:, :2]) == [1, 0, 1, 1, 0, 1], "of some tokens only"


def test_all_rows_are_looked_through() -> None:
    logits = np.random.default_rng(0).normal(0, 1, (9, 120_000)).astype(np.float32)
    assert list(each_likeliest(logits)) == logits.argmax(axis=1).tolist()
    assert list(each_likeliest(bf16_bits(logits))) == as_bf16(logits).argmax(axis=1).tolist()


@pytest.mark.parametrize("num_cores", [1, 2, 3, 64])
@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_several_cores_find_the_same(num_cores: int, num_rows: int) -> None:
    logits = np.random.default_rng(0).normal(0, 1, (num_rows, 1000)).astype(np.float32)
    logits[-1] -= 10
    parallel = ParallelLikeliest(num_cores)
    assert parallel(logits) == parallel(logits) == logits.argmax(axis=1).tolist()


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


def outputs(
    model: FakeModel, requests: dict[str, dict[str, object]] = SETTINGS
) -> dict[tuple[str, int], list[object]]:
    model.allocate_cache(400)
    engine = Engine(model, EngineConfig(), num_blocks=400, max_model_len=200)
    for name, settings in requests.items():
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


@pytest.mark.parametrize(
    ("other", "is_parallel"),
    [("greedy", True), *((name, False) for name in SETTINGS if name != "greedy")],
)
def test_several_cores_look_at_rows_of_which_nothing_else_is_wanted(
    monkeypatch: pytest.MonkeyPatch, other: str, is_parallel: bool
) -> None:
    requests = {"first": SETTINGS["greedy"], "other": SETTINGS[other]}
    expected = outputs(NoisyModel(), requests)
    steps: list[int] = []

    class Parallel(ParallelLikeliest):
        def __call__(self, logits: RawLogits) -> list[int]:
            steps.append(len(logits))
            return super().__call__(logits)

    monkeypatch.setattr(engine_module, "PARALLEL_BYTES", 2 * FakeModel.vocab_size * 4)
    monkeypatch.setattr(engine_module, "ParallelLikeliest", Parallel)
    assert outputs(NoisyModel(), requests) == expected
    assert bool(steps) is is_parallel
