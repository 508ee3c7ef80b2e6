"""Tests of `fastovms/gguf/graph.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from openvino import opset13

from bench.common.numpy_decoder import NumpyDecoder
from bench.random_models.gguf_decoder import TINY, TOKENS, GgufModel, write_model
from fastovms.errors import ConfigurationError
from fastovms.gguf.graph import build_decoder
from fastovms.gguf.hyperparameters import RopeSettings, read_hyperparameters
from fastovms.gguf.positions import (
    Rotation,
    build_masks,
    cos_sin,
    rotate,
    rotation_of,
    rotation_of_windows,
)
from fastovms.gguf.reader import read_gguf
from fastovms.gguf.tensor_types import TENSOR_TYPES
from fastovms.gguf.weights import Weights
from tests.engine.reference import EXACT
from tests.gguf.test_hyperparameters import read

# Masks, computed for a few tokens.


@pytest.mark.parametrize(
    ("num_tokens", "given", "window", "causal", "windowed"),
    [
        (3, [1, 1, 1], 2, ["x..", "xx.", "xxx"], ["x..", "xx.", ".xx"]),
        (1, [1, 1, 1, 1], 2, ["xxxx"], ["..xx"]),
        (2, [0, 1, 1], 9, [".x.", ".xx"], [".x.", ".xx"]),
        (2, [1, 1], 0, ["x.", "xx"], None),
    ],
)
def test_causal_and_windowed_masks_hide_tokens(
    num_tokens: int, given: list[int], window: int, causal: list[str], windowed: list[str] | None
) -> None:
    ids = opset13.parameter([-1, -1], np.int64)
    mask = opset13.parameter([-1, -1], np.int64)
    masks = build_masks(ids, mask, window)
    assert (masks.windowed is None) is (windowed is None)
    nodes = [node for node in masks if node is not None]
    compiled = ov.Core().compile_model(ov.Model(nodes, [ids, mask]), "CPU")
    found = compiled([np.zeros((1, num_tokens), np.int64), np.array([given])])
    for index, expected in enumerate(filter(None, (causal, windowed))):
        scores = np.asarray(found[index])
        assert scores.shape == (1, 1, num_tokens, len(given))
        seen = ["".join("x" if value == 0 else "." for value in row) for row in scores[0, 0]]
        assert seen == expected
        assert scores.min() >= np.finfo(np.float16).min


# Log probabilities of graphs equal those that NumPy computes from the file's weights.


RNG = np.random.default_rng(0)
ATTENTION = ("attn_q", "attn_k", "attn_v")
SCALED = {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
VARIANTS = {
    "llama": GgufModel(),
    "llama of all types": GgufModel(types=tuple(map(Type, TENSOR_TYPES)), seed=1),
    "llama with biases": GgufModel(biases=(*ATTENTION, "attn_output", "ffn_down"), is_tied=True),
    "llama 3.1": GgufModel(extra={"rope_freqs.weight": RNG.uniform(1, 8, TINY.head_size // 2)}),
    "llama, linear": GgufModel(settings={"rope.scaling.type": "linear", **SCALED}),
    "llama, yarn": GgufModel(settings={"rope.scaling.type": "yarn", **SCALED}),
    "mistral": GgufModel(settings={"attention.sliding_window": 9}),
    "qwen2": GgufModel("qwen2", biases=ATTENTION, types=(Type.Q8_0, Type.Q4_0)),
    "qwen3": GgufModel("qwen3", types=(Type.Q4_K, Type.Q6_K), is_tied=True),
    "qwen3moe": GgufModel("qwen3moe", types=(Type.Q4_K, Type.Q6_K, Type.MXFP4)),
    "qwen3moe of other types": GgufModel("qwen3moe", types=(Type.Q4_0, Type.IQ4_NL, Type.Q8_0)),
    "lfm2": GgufModel("lfm2", types=(Type.Q4_0, Type.Q8_0), is_tied=True),
    "lfm2moe": GgufModel("lfm2moe", types=(Type.Q4_K, Type.Q6_K, Type.Q5_K), is_tied=True),
    "qwen35": GgufModel("qwen35", types=(Type.Q4_K, Type.Q6_K, Type.Q5_K)),
    "qwen35moe": GgufModel(
        "qwen35moe", types=(Type.Q4_K, Type.IQ4_NL, Type.F16, Type.MXFP4, Type.Q6_K)
    ),
    "qwen3next": GgufModel("qwen3next", types=(Type.Q3_K, Type.Q8_0, Type.Q4_K)),
    "qwen3next, joined": GgufModel("qwen3next", types=(Type.Q4_K, Type.Q6_K), is_joined=True),
    "granitehybrid": GgufModel("granitehybrid"),
    "granitehybrid with experts": GgufModel(
        "granitehybrid", types=(Type.Q4_K, Type.Q6_K), settings={"expert_count": TINY.num_experts}
    ),
    "granite": GgufModel("granite"),
    "granitemoe": GgufModel("granitemoe", types=(Type.Q4_K, Type.Q6_K)),
    "qwen2moe": GgufModel("qwen2moe", types=(Type.Q4_K, Type.Q6_K), biases=ATTENTION),
    "olmoe": GgufModel("olmoe", types=(Type.Q4_K, Type.Q6_K)),
    "mixtral": GgufModel(types=(Type.Q4_K, Type.Q6_K), settings={"expert_count": TINY.num_experts}),
    "gpt-oss": GgufModel(
        "gpt-oss",
        types=(Type.Q8_0, Type.MXFP4),
        biases=(*ATTENTION, "attn_output"),
        settings={
            "attention.sliding_window": 9,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "gemma": GgufModel("gemma", is_tied=True),
    "gemma3": GgufModel(
        "gemma3",
        is_tied=True,
        settings={
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "final_logit_softcapping": 9.0,
        },
    ),
    "phi3": GgufModel("phi3", settings={"attention.sliding_window": 9}, types=(Type.Q5_K,)),
    "phi3, longrope": GgufModel(
        "phi3",
        settings={
            "rope.dimension_count": 12,
            "rope.scaling.attn_factor": 1.19,
            "rope.scaling.original_context_length": 25,
        },
        extra={
            "rope_factors_short.weight": RNG.uniform(1, 2, 6),
            "rope_factors_long.weight": RNG.uniform(1, 8, 6),
        },
    ),
}


def build(path: Path) -> ov.Model:
    file = read_gguf(path)
    return build_decoder(file, read_hyperparameters(file.metadata))


class Session:
    """Computes log probabilities of one text in parts."""

    def __init__(self, model: ov.Model) -> None:
        self._names = [port.any_name for port in model.inputs]
        self._request = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()

    def log_probabilities(self, *parts: list[int]) -> NDArray[np.float64]:
        self._request.reset_state()
        past, logits = 0, []
        for part in parts:
            end = past + len(part)
            inputs: dict[str, Any] = {
                "input_ids": np.array([part]),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(past, end)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            self._request.infer({name: inputs[name] for name in self._names})
            logits.append(self._request.get_tensor("logits").data[0].astype(np.float64))
            past = end
        values = np.concatenate(logits)
        values -= values.max(axis=1, keepdims=True)
        return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


@pytest.mark.nightly(
    but=(
        "gemma3",
        "qwen3",
        "llama 3.1",
        "phi3, longrope",
        "llama of all",
        "qwen35moe",
        "qwen3next, joined",
        "granitehybrid with experts",
        "lfm2moe",
        "gpt-oss",
    )
)
@pytest.mark.parametrize("name", VARIANTS)
def test_log_probabilities_agree_with_a_numpy_decoder(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", VARIANTS[name])
    session = Session(build(tmp_path / "m.gguf"))
    reference = NumpyDecoder(tmp_path / "m.gguf")
    text = np.random.default_rng(1).integers(0, len(TOKENS), 30).tolist()
    for length in (20, 30):
        expected = reference.log_probabilities(text[:length])
        assert np.abs(session.log_probabilities(text[:length]) - expected).max() < 1e-3
    if "longrope" not in name:  # where the later part would change the earlier one
        assert np.abs(session.log_probabilities(text[:13], text[13:]) - expected).max() < 1e-3


# Tensors of a file become constants of a graph.


def test_weights_stay_quantized(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", GgufModel(types=(Type.Q4_K,), is_tied=True))
    compiled = ov.Core().compile_model(build(tmp_path / "m.gguf"), "CPU", EXACT)
    types = [
        str(node.get_rt_info()["outputPrecisions"].astype(str))
        for node in compiled.get_runtime_model().get_ordered_ops()
        if node.get_rt_info()["layerType"].astype(str) == "Const" and len(node.shape) > 1
        and np.prod(node.shape) > 5_000
    ]  # fmt: skip
    assert sorted(set(types)) == ["i8", "u4"]
    assert types.count("u4") == 6 * TINY.layers + 2  # the tied tensor has two users


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            GgufModel(extra={"blk.0.attn_sinks.weight": np.ones(4)}),
            "architecture llama is not supported with the tensor blk.0.attn_sinks.weight$",
        ),
        (
            GgufModel("gemma", extra={"cls.weight": np.ones(4), "cls.bias": np.ones(4)}),
            "not supported with the tensor cls.bias and 1 more",
        ),
        (
            GgufModel("qwen2", settings={"block_count": 4}),
            "tensor blk.3.attn_norm.weight is missing",
        ),
        (
            GgufModel(settings={"attention.head_count": 2}),
            r"blk.0.attn_q.weight must have the shape \[32, 256\], not \[64, 256\]",
        ),
        (
            GgufModel("qwen3moe", settings={"expert_count": 8}),
            r"blk.0.ffn_gate_exps.weight must have the shape \[8, 256, 256\], not \[6, 256, 256\]",
        ),
        (
            GgufModel("qwen3", extra={"blk.0.ffn_gate_exps.weight": np.ones((2, 3, 4))}),
            "architecture qwen3 is not supported with the tensor blk.0.ffn_gate_exps.weight$",
        ),
        (
            GgufModel("qwen35moe", settings={"expert_count": 5}),
            r"blk.0.ffn_gate_exps.weight must have the shape \[5, 256, 256\], not \[6, 256, 256\]",
        ),
        (
            GgufModel("qwen35", settings={"full_attention_interval": 2}),
            "the tensor blk.1.attn_q.weight is missing",
        ),
        (
            GgufModel("qwen35", settings={"ssm.group_count": 1}),
            r"blk.0.attn_qkv.weight must have the shape \[384, 256\], not \[512, 256\]",
        ),
        (
            GgufModel("granitehybrid", settings={"ssm.state_size": 32}),
            r"blk.0.ssm_in.weight must have the shape \[1092, 256\], not \[1156, 256\]",
        ),
        (
            GgufModel("granitehybrid", settings={"attention.head_count_kv": [2, 0, 0]}),
            "the tensor blk.0.attn_q.weight is missing",
        ),
        (
            GgufModel("lfm2moe", settings={"leading_dense_block_count": 2}),
            "the tensor blk.1.ffn_down.weight is missing",
        ),
        (
            GgufModel("phi3", extra={"rope_factors_long.weight": np.ones(8)}),
            "tensor rope_factors_short.weight is missing",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(model: GgufModel, message: str, tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", model)
    with pytest.raises(ConfigurationError, match=message):
        build(tmp_path / "m.gguf")


# Rotary embeddings: frequencies and rotated dimensions.


def test_frequencies_that_old_files_repeat_are_needless(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", GgufModel(extra={"blk.0.attn_rot_embd.weight": np.ones(8)}))
    build(tmp_path / "m.gguf")


def rope(**settings: object) -> RopeSettings:
    """Returns the rotary settings of the tiny model with changes."""
    return replace(
        read("llama").rope, num_dimensions=4, base=100.0, original_context=64, **settings
    )


@pytest.mark.parametrize(
    ("settings", "periods", "magnitude"),
    [
        ({}, [1, 10], 1.0),
        ({"scaling": "linear", "factor": 4.0}, [4, 40], 1.0),
        ({"attention_factor": 0.5}, [1, 10], 0.5),
        # All pairs are between `beta_fast` and `beta_slow` rotations in the original context.
        ({"scaling": "yarn", "factor": 4.0, "extrapolation": 0.0}, [4, 40], 1.0),
        ({"scaling": "yarn", "factor": 4.0, "extrapolation": 1.0, "beta_fast": 0.001,
          "beta_slow": 0.0001}, [1, 10], 1 + 0.1 * np.log(4)),
    ],
)  # fmt: skip
def test_rope_scaling_sets_periods_and_magnitude(
    settings: dict[str, object], periods: list[float], magnitude: float
) -> None:
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
