"""Rotary embeddings: frequencies, and what turns by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from fastovms.gguf.hyperparameters import RopeSettings
from fastovms.gguf.rotary import Rotation, cos_sin, rotate, rotation_of, rotation_of_windows
from fastovms.gguf.weights import Weights
from tests.engine.reference import EXACT
from tests.gguf.test_decoder_graph import build
from tests.gguf.test_hyperparameters import read
from tests.gguf.tiny_models import TinyModel, write_model


def test_frequencies_that_old_files_repeat_are_needless(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", TinyModel(extra={"blk.0.attn_rot_embd.weight": np.ones(8)}))
    build(tmp_path / "m.gguf")


def rope(**settings: object) -> RopeSettings:
    """How the tiny model rotates, with some settings changed."""
    return replace(
        read("llama").rope, num_dimensions=4, base=100.0, original_context=64, **settings
    )


@pytest.mark.parametrize(
    ("settings", "periods", "magnitude"),
    [
        ({}, [1, 10], 1.0),
        ({"scaling": "linear", "factor": 4.0}, [4, 40], 1.0),
        ({"attention_factor": 0.5}, [1, 10], 0.5),
        # Between `beta_fast` and `beta_slow` rotations in the original context lies every pair.
        ({"scaling": "yarn", "factor": 4.0, "extrapolation": 0.0}, [4, 40], 1.0),
        ({"scaling": "yarn", "factor": 4.0, "extrapolation": 1.0, "beta_fast": 0.001,
          "beta_slow": 0.0001}, [1, 10], 1 + 0.1 * np.log(4)),
    ],
)  # fmt: skip
def test_periods(settings: dict[str, object], periods: list[float], magnitude: float) -> None:
    parameters = replace(read("llama"), rope=rope(**settings))
    rotation = rotation_of(parameters, NoTensors())
    assert rotation.periods == pytest.approx(periods)
    assert rotation.magnitude == pytest.approx(magnitude)
    assert rotation.long_periods is None


class NoTensors(Weights):
    def __init__(self) -> None:
        pass

    def __contains__(self, name: str) -> bool:
        return False


def test_layers_with_a_window_may_rotate_by_a_base_of_their_own() -> None:
    parameters = replace(read("llama"), rope=rope())
    assert rotation_of_windows(parameters) is None
    own = rotation_of_windows(replace(parameters, window_rope_base=10_000.0))
    assert own is not None
    assert own.periods == pytest.approx([1, 100])


@pytest.mark.parametrize(("positions", "periods"), [([0, 3], [1.0, 10.0]), ([3, 4], [2.0, 20.0])])
def test_the_highest_position_decides_which_periods_apply(
    positions: list[int], periods: list[float]
) -> None:
    short, long = (np.array(each, np.float32) for each in ([1, 10], [2, 20]))
    ids = opset13.parameter([-1, -1], np.int64)
    angles = cos_sin(Rotation(short, long, original_context=4, magnitude=0.5), ids)
    heads = opset13.parameter([1, 1, -1, 6], np.float32)
    rotated = rotate(heads, 4, 6, angles)
    model = ov.Model([angles.cos, angles.sin, rotated], [ids, heads])
    values = np.arange(12, dtype=np.float32).reshape(1, 1, 2, 6)
    found = ov.Core().compile_model(model, "CPU", EXACT)([np.array([positions]), values])
    expected = np.array([[p / period for period in (*periods, *periods)] for p in positions])
    cos, sin, turned = (np.asarray(found[index])[0, 0] for index in range(3))
    assert cos == pytest.approx(0.5 * np.cos(expected), abs=1e-5)
    assert sin == pytest.approx(0.5 * np.sin(expected), abs=1e-5)
    first, second, rest = values[0, 0, :, :2], values[0, 0, :, 2:4], values[0, 0, :, 4:]
    halves = np.concatenate([-second, first], -1)
    assert turned[:, :4] == pytest.approx(values[0, 0, :, :4] * cos + halves * sin, abs=1e-4)
    assert turned[:, 4:] == pytest.approx(rest)
