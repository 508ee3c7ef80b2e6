"""Tests of `fastovms/parts/adapters/files.py`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastovms.errors import ConfigurationError
from fastovms.parts.adapters.files import read_adapter
from fastovms.parts.adapters.graph import MatrixShape
from tests.adapters import write_adapter, write_safetensors
from tests.engine.bf16 import bf16_bits

MODULE = "model.layers.0.self_attn.q_proj"
OTHER = "model.layers.1.mlp.down_proj"
SHAPES = {MODULE: MatrixShape(6, 4), OTHER: MatrixShape(5, 3)}
DOWN, UP = f"base_model.model.{MODULE}.lora_A.weight", f"base_model.model.{MODULE}.lora_B.weight"


def tensors(rank: int = 2, module: str = MODULE) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shape = SHAPES[module]
    return {
        f"base_model.model.{module}.lora_A.weight": rng.normal(size=(rank, shape.columns)),
        f"base_model.model.{module}.lora_B.weight": rng.normal(size=(shape.rows, rank)),
    }


def as_f32(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value.astype(np.float32) for name, value in found.items()}


def read(directory: Path, max_rank: int = 8) -> Any:
    return read_adapter(directory, SHAPES, max_rank=max_rank)


@pytest.mark.parametrize("store", [np.float32, np.float16, "bf16"])
def test_matrices_are_read_and_scaled(tmp_path: Path, store: Any) -> None:
    given = as_f32(tensors())
    stored = {
        name: bf16_bits(value) if store == "bf16" else value.astype(store)
        for name, value in given.items()
    }
    write_adapter(tmp_path, stored, rank=2, alpha=5)
    pair = read(tmp_path).weights[MODULE]
    tolerance = {"rtol": 1e-2} if store == "bf16" else {"rtol": 1e-3}
    np.testing.assert_allclose(pair.down, given[DOWN], **tolerance)
    np.testing.assert_allclose(pair.up, 2.5 * given[UP].T, **tolerance)
    assert pair.down.dtype == pair.up.dtype == np.float32


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 4.0),
        ({"use_rslora": True}, 8 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 6}}, 3.0),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 2}}, 1.0),
        ({"alpha_pattern": {"k_proj": 6}}, 4.0),
        ({"alpha_pattern": {r".*\.0\..*": 6, "q_proj": 2}}, 3.0),
        ({"rank_pattern": {"q_proj": 2}, "r": 8}, 4.0),
        ({"modules_to_save": None, "use_dora": False, "init_lora_weights": "gaussian"}, 4.0),
    ],
)
def test_scales_are_those_of_peft(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    given = as_f32(tensors())
    write_adapter(tmp_path, given, rank=config.pop("r", 2), alpha=8, **config)
    pair = read(tmp_path).weights[MODULE]
    np.testing.assert_allclose(pair.up, scale * given[UP].T, rtol=1e-6)


def test_the_digest_is_of_both_files(tmp_path: Path) -> None:
    first = read(write_adapter(tmp_path / "a", as_f32(tensors()), rank=2)).digest
    assert read(write_adapter(tmp_path / "b", as_f32(tensors()), rank=2)).digest == first
    other = read(write_adapter(tmp_path / "c", as_f32(tensors()), rank=2, alpha=9)).digest
    changed = {name: value + 1 for name, value in as_f32(tensors()).items()}
    last = read(write_adapter(tmp_path / "d", changed, rank=2)).digest
    assert len({first, other, last}) == 3
    assert len(first) == 32


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type must be LORA, not 'IA3'"),
        ({"peft_type": None}, "peft_type must be LORA, not None"),
        ({"use_dora": True}, "use_dora is set, but DoRA cannot be served"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is set"),
        ({"target_parameters": ["a"]}, "target_parameters is set"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices is set"),
        ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens is set"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"r": 0}, "r must be an integer of at least 1, not 0"),
        ({"r": True}, "r must be an integer of at least 1, not True"),
        ({"lora_alpha": "8"}, "lora_alpha must be a number .*, not '8'"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number from -65504 to 65504, not nan"),
        ({"lora_alpha": 1e300}, r"lora_alpha must be a number .*, not 1e\+300"),
        ({"lora_alpha": 10**400}, r"lora_alpha must be a number .*, not 1000.*\.\.\."),
        ({"lora_alpha": None, "alpha_pattern": {"lora_alpha": 8}}, "lora_alpha must be .*not None"),
        ({"alpha_pattern": [1]}, r"alpha_pattern must be an object, not \[1\]"),
        ({"alpha_pattern": {"q": None}}, "q must be a number .*, not None"),
        ({"alpha_pattern": {"(": 1}}, r"alpha_pattern has '\(', which is not a regular"),
        ({"alpha_pattern": {"(?i)q_proj": 1}}, "which is not a regular"),
        ({"alpha_pattern": {"a{99999999999}": 1}}, "which is not a regular"),
        ({"alpha_pattern": {"(.+)+x": 1}}, r"has '\(\.\+\)\+x': .* must not repeat a group"),
        ({"alpha_pattern": {".*.*.*x": 1}}, "at most 300 characters, 2 repetitions"),
        ({"alpha_pattern": {"(m|m)" * 20: 1}}, "and 2 groups"),
        ({"alpha_pattern": {"q" * 301: 1}}, "at most 300 characters"),
        ({"alpha_pattern": {f"q{n}": 1 for n in range(1001)}}, "has 1001 members, more than 1000"),
        ({"bias": "x" * 10**5}, r"bias is 'x{,30}\.\.\.x{,30}', but"),
    ],
)
def test_unsupported_adapter_config_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    write_adapter(tmp_path, as_f32(tensors()), rank=2)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: {}, "has no tensors"),
        (lambda given: {DOWN: given[DOWN]}, "q_proj has no lora_B"),
        (lambda given: {UP: given[UP]}, "q_proj has no lora_A"),
        (
            lambda given: given | {"x.lora_magnitude_vector": given[UP]},
            "lora_magnitude_vector is not",
        ),
        (lambda given: given | {DOWN: given[DOWN][:, :3].copy()}, "is for another model: .*q_proj"),
        (lambda given: given | {UP: given[UP][:4].copy()}, "is for another model: .*q_proj"),
        (lambda given: given | {DOWN: given[DOWN][:1].copy()}, "is for another model: .*q_proj"),
        (
            lambda given: {n.replace("layers.0", "layers.7"): t for n, t in given.items()},
            "is for another model: it changes model.layers.7.self_attn.q_proj",
        ),
        (lambda given: given | {DOWN[len("base_model.model.") :]: given[DOWN]}, "has lora_A twice"),
        (lambda given: given | {DOWN: given[DOWN] + np.float32(1e30)}, "or beyond 65504"),
        (lambda given: given | {DOWN: given[DOWN] * np.float32(np.inf)}, "not finite"),
        (lambda given: given | {DOWN: given[DOWN] * np.float32(np.nan)}, "not finite"),
    ],
)
def test_unsupported_tensors_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    write_adapter(tmp_path, change(as_f32(tensors())), rank=2)
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path)


def test_rank_above_the_limit_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, as_f32(tensors(rank=9)), rank=9)
    assert read(tmp_path, max_rank=9).weights
    with pytest.raises(
        ConfigurationError, match=r"has rank 9 at .*from 1 to 8, see --max-lora-ran"
    ):
        read(tmp_path)


def with_header(header: object) -> Callable[[bytes], bytes]:
    text = json.dumps(header).encode()
    return lambda _: struct.pack("<Q", len(text)) + text + bytes(8)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "the length of the header is invalid"),
        (lambda data: data[:5], "the length of the header is invalid"),
        (
            lambda data: struct.pack("<Q", 2**63) + data[8:],
            "the length of the header is invalid",
        ),
        (lambda data: data[:60], "the length of the header is invalid"),
        (lambda data: data[:-1], "the tensors end at"),
        (lambda data: data + b"x", "the tensors end at"),
        (lambda data: data[:8] + b"x" + data[9:], "is not JSON"),
        (with_header([]), "is not a JSON object"),
        (with_header({"x" * 301: 5}), r"a name must be at most 300 printable .*x\.\.\.x"),
        (with_header({"line\nbreak": 5}), "a name must be at most 300 printable"),
        (with_header({DOWN: 5}), "must be F32, F16 or BF16, not None"),
        (with_header({DOWN: {"dtype": "I64"}}), "must be F32, F16 or BF16, not 'I64'"),
        (with_header({DOWN: {"dtype": ["F32"]}}), "must be F32, F16 or BF16"),
        (
            with_header({DOWN: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
            "must have a shape of two sizes",
        ),
        (
            with_header({DOWN: {"dtype": "F32", "shape": [1, -2], "data_offsets": [0, 8]}}),
            "must have a shape of two sizes",
        ),
        (
            with_header({DOWN: {"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 0]}}),
            "not those of its shape",
        ),
        (
            with_header({DOWN: {"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 16]}}),
            "does not follow",
        ),
    ],
)
def test_damaged_files_are_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    write_adapter(tmp_path, as_f32(tensors()), rank=2)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path)


@pytest.mark.parametrize("keep", ["adapter_config.json", "adapter_model.safetensors"])
def test_missing_files_are_named(tmp_path: Path, keep: str) -> None:
    write_adapter(tmp_path, as_f32(tensors()), rank=2)
    [gone] = [path for path in tmp_path.iterdir() if path.name != keep]
    gone.unlink()
    with pytest.raises(ConfigurationError, match=f"(has no )?{gone.name}( is missing)?"):
        read(tmp_path)
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(ConfigurationError, match=f"(has no )?{gone.name}( is missing)?"):
        read(tmp_path)
    with pytest.raises(ConfigurationError, match="is not a directory"):
        read(tmp_path / "nothing")


def test_unreadable_adapter_config_is_a_configuration_error(tmp_path: Path) -> None:
    write_adapter(tmp_path, as_f32(tensors()), rank=2)
    path = tmp_path / "adapter_config.json"
    for text in ("", "[]", "{", "{" * 10**5):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=r"adapter_config.json is not"):
            read(tmp_path)
    path.write_text(" " * 2**21)
    with pytest.raises(ConfigurationError, match="is longer than"):
        read(tmp_path)
    path.unlink()
    path.symlink_to(tmp_path / "loop")
    with pytest.raises(
        ConfigurationError, match=r"is not a PEFT adapter: adapter_config.json is missing"
    ):
        read(tmp_path)


def test_empty_matrix_is_refused(tmp_path: Path) -> None:
    found = {DOWN: np.zeros((0, 4), np.float32), UP: np.zeros((6, 0), np.float32)}
    write_adapter(tmp_path, {}, rank=2)
    write_safetensors(tmp_path / "adapter_model.safetensors", found)
    with pytest.raises(ConfigurationError, match="has rank 0"):
        read(tmp_path)
