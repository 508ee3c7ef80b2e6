"""Activations are quantized in groups that fit those of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.model.graph.weight_groups import activation_group_size, int4_group_size
from fastovms.engine.model.model import ExportedModel
from fastovms.gguf.converter import convert
from tests.gguf.tiny_models import TinyModel, write_model


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((Type.Q8_0,), 32),
        ((Type.Q4_0,), 32),
        ((Type.Q6_K,), 16),
        ((Type.Q4_1,), 128),  # zero points that are no integers
        ((Type.Q4_K, Type.Q4_K, Type.Q6_K), 16),
        ((Type.Q4_0, Type.Q4_0, Type.Q4_0, Type.Q6_K), 32),
        ((Type.F16,), 128),
    ],
)
def test_of_gguf_files(types: tuple[Type, ...], expected: int, tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", TinyModel(types=types))
    directory = tmp_path / "model"
    directory.mkdir()
    convert(tmp_path / "model.gguf", directory)
    model = ov.Core().read_model(directory / "openvino_model.xml")
    assert activation_group_size(model) == expected
    # Paging changes nothing about it.
    assert activation_group_size(ExportedModel(directory).graph.model) == expected


@pytest.mark.parametrize(
    ("weight_format", "expected"), [("int8", 128), ("int4", 32), ("fp16", 128), ("fp32", 128)]
)
def test_of_exports(weight_format: str, expected: int) -> None:
    shape = replace(SHAPES["tiny"], weight_format=weight_format)
    assert activation_group_size(LlamaGraph(shape, 300, seed=0).build()) == expected


def in_groups(size: int) -> ov.Node:
    """A matrix of 2 rows."""
    integers = ops.convert(ops.constant(np.ones((2, 4, size), np.int8)), "f32")
    scaled = ops.multiply(integers, ops.constant(np.ones((2, 4, 1), np.float32)))
    return ops.reshape(scaled, ops.constant(np.array([2, -1])), False)


def in_rows() -> ov.Node:
    integers = ops.convert(ops.constant(np.ones((2, 96), np.int8)), "f32")
    return ops.multiply(integers, ops.constant(np.ones((2, 1), np.float32)))


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (lambda: in_groups(64), 64),
        (lambda: in_groups(96), 32),
        (lambda: in_groups(256), 128),
        (in_rows, 128),
    ],
)
def test_groups_of_activations_divide_those_of_weights(
    matrix: Callable[[], ov.Node], expected: int
) -> None:
    hidden = ops.parameter([-1, -1], np.float32)
    output = ops.result(ops.matmul(hidden, matrix(), False, True))
    assert activation_group_size(ov.Model([output], [hidden], "model")) == expected


@pytest.mark.parametrize(
    ("weight_format", "expected"),
    [("int8", None), ("int4", 32), ("int4-sym-64", 64), ("int4-sym-channel", 128), ("fp16", None)],
)
def test_groups_of_int4_weights_are_found(weight_format: str, expected: int | None) -> None:
    shape = replace(
        SHAPES["tiny"], intermediate_size=128, num_hidden_layers=1, weight_format=weight_format
    )
    assert int4_group_size(LlamaGraph(shape, 300, seed=0).build()) == expected


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((Type.Q8_0,), None),  # groups of 32, of 8 bits
        ((Type.Q4_0,), 32),
        ((Type.Q4_0, Type.Q8_0, Type.Q8_0), 32),
        ((Type.Q4_1,), None),
    ],
)
def test_groups_of_gguf_files(
    types: tuple[Type, ...], expected: int | None, tmp_path: Path
) -> None:
    write_model(tmp_path / "model.gguf", TinyModel(types=types))
    directory = tmp_path / "model"
    directory.mkdir()
    convert(tmp_path / "model.gguf", directory)
    assert ExportedModel(directory).int4_group_size == expected
