"""Tests of reading the weights in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from bench.random_models.weights import QUANTIZATIONS, QuantizedMatrix
from fastovms.engine.kernels.matrices import (
    CompressedWeights,
    group_columns,
    packed_kind,
    packed_size,
    read_weights,
)
from fastovms.engine.kernels.products import INSTRUCTION_SETS, ProductKind
from tests.engine.kernels.matrix_cases import dense, random_weights


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_weights_are_read_as_exports_hold_them(name: str) -> None:
    matrix = QuantizedMatrix.random(np.random.default_rng(0), 24, 256, 0.02, QUANTIZATIONS[name])
    weights = read_weights(matrix.node("weight"))
    assert weights is not None
    assert np.array_equal(dense(weights), matrix.dense())


def test_weights_of_gguf_files_are_read() -> None:
    # Scales and zero points of f32, one for each group, without a conversion after them.
    raw = np.random.default_rng(0).integers(0, 256, 16 * 64 // 2, np.uint8)
    node = ops.constant(ov.Tensor(raw, ov.Shape([16, 2, 32]), ov.Type.u4), shared_memory=False)
    zero_points = np.linspace(-1, 9, 32, dtype=np.float32).reshape(16, 2, 1)
    scales = np.linspace(0.1, 0.2, 32, dtype=np.float32).reshape(16, 2, 1)
    node = ops.subtract(ops.convert(node, np.float32), ops.constant(zero_points))
    node = ops.multiply(node, ops.constant(scales))
    weights = read_weights(ops.reshape(node, ops.constant(np.array([16, 64])), False))
    assert weights is not None
    values = np.stack([raw & 15, raw >> 4], -1).reshape(16, 2, 32)
    expected = (values - zero_points) * scales
    np.testing.assert_allclose(dense(weights), expected.reshape(16, 64), rtol=1e-6)


def constant(values: Any) -> Any:
    return ops.constant(np.asarray(values))


def scaled(integers: Any, *scales: int) -> Any:
    return ops.multiply(integers, ops.constant(np.ones(scales, np.float32)))


def floats(*shape: int) -> Any:
    return ops.convert(constant(np.ones(shape, np.int8)), np.float32)


@pytest.mark.parametrize(
    "node",
    [
        constant(np.ones((8, 64), np.float32)),
        scaled(floats(8, 64), 1, 64),
        scaled(ops.tanh(floats(8, 64)), 8, 1),
        scaled(floats(2, 8, 64), 2, 8, 1),
    ],
    ids=["not compressed", "a scale a column", "not only decompressed", "of several experts"],
)
def test_weights_of_other_forms_are_left_alone(node: Any) -> None:
    assert read_weights(node) is None


@pytest.mark.parametrize(
    ("bits", "shape", "instructions", "expected"),
    [
        (4, (8, 2048, 16), "avx2", 128),
        (4, (8, 2048, 64), "avx2", 32),
        (8, (8, 576, 1), "avx2", 192),
        (8, (8, 576, 1), "avx_vnni", 96),
        (8, (8, 2048, 1), "avx2", 256),
        (8, (8, 2048, 1), "avx512_vnni", 128),
        (8, (8, 64, 4), "avx2", 16),
        (6, (8, 64, 4), "avx512_vnni", 16),
        (6, (8, 64, 8), "avx2", None),
        (4, (8, 64, 4), "avx2", None),
        (8, (8, 100, 1), "avx2", None),
    ],
)
def test_columns_that_share_a_scale_divide_groups(
    bits: int, shape: tuple[int, int, int], instructions: str, expected: int | None
) -> None:
    weights = random_weights(bits, is_signed=True, zeros="none", shape=shape)
    kind = ProductKind(instructions, weights.bits, has_zero_points=False)
    assert group_columns(weights, kind) == expected
    assert (packed_kind(weights, instructions) is None) == (expected is None)


LENGTH = 2 * 256 * 1024
"""Integers that span more than one of the examined parts."""


@pytest.mark.parametrize(
    ("is_signed", "lowest", "highest", "bits"),
    [
        (True, -32, 31, 6),
        (True, -33, 31, 8),
        (True, -32, 32, 8),
        (True, -128, 127, 8),
        (False, 0, 63, 6),
        (False, 0, 64, 8),
        (False, 1, 255, 8),
        (False, 0, 0, 6),
    ],
)
@pytest.mark.parametrize("place", [0, LENGTH // 2, LENGTH - 2])
def test_integers_of_8_bits_that_fit_6_are_packed_with_6(
    is_signed: bool, lowest: int, highest: int, bits: int, place: int
) -> None:
    integers = np.full(LENGTH, 7)
    integers[place : place + 2] = lowest, highest
    scales = np.ones((64, LENGTH // 64 // 16), np.float32)
    weights = CompressedWeights(
        integers.astype(np.uint8), 8, is_signed, scales, None, 64, LENGTH // 64
    )
    for instructions in INSTRUCTION_SETS:
        kind = packed_kind(weights, instructions)
        assert kind is not None
        assert kind.weight_bits == bits
        assert packed_size(weights, kind) == LENGTH * (bits + 1 + kind.has_zero_points) // 8


def test_scales_beyond_f16_are_left_to_openvino() -> None:
    weights = random_weights(8, is_signed=True, zeros="none", shape=(8, 64, 1))
    weights.scales[3] = 1e5
    assert packed_kind(weights, "avx2") is None


@pytest.mark.parametrize(("bits", "middle"), [(4, 8), (6, 32), (8, 128)])
def test_packed_kind_omits_central_zero_points(bits: int, middle: int) -> None:
    weights = random_weights(bits, is_signed=False, zeros="integers", shape=(8, 64, 1))
    assert weights.zero_points is not None
    weights.zero_points[:] = middle
    kind = packed_kind(weights, "avx2")
    assert kind is not None
    assert not kind.has_zero_points
