"""What graphs hold weights as."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from bench.random_models.weights import QUANTIZATIONS, QuantizedMatrix
from fastovms.engine.kernels.matrices import group_columns, packed_kind, read_weights
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
        (4, (8, 64, 4), "avx2", None),
        (8, (8, 100, 1), "avx2", None),
    ],
)
def test_columns_that_share_a_scale_divide_groups(
    bits: int, shape: tuple[int, int, int], instructions: str, expected: int | None
) -> None:
    weights = random_weights(bits, is_signed=True, zeros="none", shape=shape)
    activation_bits = 16 if instructions == "avx2" else 8
    assert group_columns(weights, activation_bits) == expected
    assert (packed_kind(weights, instructions) is None) == (expected is None)


def test_scales_beyond_f16_are_left_to_openvino() -> None:
    weights = random_weights(8, is_signed=True, zeros="none", shape=(8, 64, 1))
    weights.scales[3] = 1e5
    assert packed_kind(weights, "avx2") is None


@pytest.mark.parametrize(("bits", "middle"), [(4, 8), (8, 128)])
def test_zero_points_in_the_middle_cost_nothing(bits: int, middle: int) -> None:
    weights = random_weights(bits, is_signed=False, zeros="integers", shape=(8, 64, 1))
    assert weights.zero_points is not None
    weights.zero_points[:] = middle
    kind = packed_kind(weights, "avx2")
    assert kind is not None
    assert not kind.has_zero_points
