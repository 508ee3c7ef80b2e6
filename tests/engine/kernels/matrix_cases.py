"""Matrices of compressed weights, and products with them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.kernels.matrices import CompressedWeights

Floats = NDArray[np.float32]

SHAPES = ((8, 64, 1), (24, 576, 1), (40, 256, 8), (16, 512, 4), (13, 128, 2), (8, 2048, 64))
"""Rows, columns and groups. Rows do not always fill blocks."""

EXTREMES = ("random", "lowest", "highest")


def random_weights(
    bits: int, *, is_signed: bool, zeros: str, shape: tuple[int, int, int], values: str = "random"
) -> CompressedWeights:
    """Returns weights whose scales and zero points f16 holds exactly.

    Args:
        zeros: of zero points: "none", "integers" or "fractions".
        values: "lowest" and "highest" = all integers are the one or the other.
    """
    rows, columns, groups = shape
    rng = np.random.default_rng(rows + columns)
    size = rows * columns * bits // 8
    lowest = (0x88 if bits == 4 else 0x80) if is_signed else 0
    highest = (0x77 if bits == 4 else 0x7F) if is_signed else 0xFF
    integers = {
        "random": rng.integers(0, 256, size, np.uint8),
        "lowest": np.full(size, lowest, np.uint8),
        "highest": np.full(size, highest, np.uint8),
    }[values]
    scales = rng.uniform(0.5, 2, (rows, groups)).astype(np.float16).astype(np.float32)
    zero_points = {
        "none": None,
        "integers": rng.integers(0, 2**bits, (rows, groups)).astype(np.float32),
        "fractions": rng.integers(-64, 64, (rows, groups)).astype(np.float32) / 4,
    }[zeros]
    return CompressedWeights(integers, bits, is_signed, scales, zero_points, rows, columns)


def all_weights() -> Iterator[CompressedWeights]:
    """Yields weights of all forms."""
    for bits, is_signed, zeros, shape in product(
        (4, 8), (False, True), ("none", "integers", "fractions"), SHAPES
    ):
        yield random_weights(bits, is_signed=is_signed, zeros=zeros, shape=shape)
    for bits, is_signed, values in product((4, 8), (False, True), EXTREMES[1:]):
        for zeros in ("none", "integers"):
            yield random_weights(
                bits, is_signed=is_signed, zeros=zeros, shape=(16, 256, 1), values=values
            )


def activations(num_rows: int, num_columns: int) -> Floats:
    """Returns activations, of which one group is zero and one has a number far from the others."""
    rows = np.random.default_rng(num_rows).standard_normal((num_rows, num_columns))
    rows[:, :32] = 0
    rows[:, 40] = 12
    return rows.astype(np.float32)


def quantized(rows: Floats, columns: int, largest: int) -> tuple[Floats, Floats]:
    """Returns the integers that activations become in groups of `columns`, and the scale of each
    group."""
    groups = rows.reshape(len(rows), -1, columns)
    scales = np.abs(groups).max(-1, keepdims=True) / largest
    integers = np.rint(groups / np.where(scales, scales, 1))
    return integers.reshape(rows.shape), scales[..., 0]


def dense(weights: CompressedWeights) -> Floats:
    """Returns the numbers that weights stand for, [rows, columns]."""
    values = weights.integers
    if weights.bits == 4:
        values = np.stack([values & 15, values >> 4], -1).reshape(-1)
    integers = values[: weights.num_rows * weights.num_columns].astype(np.float32)
    if weights.is_signed:
        half = 2 ** (weights.bits - 1)
        integers = (integers + half) % (2 * half) - half
    grouped = integers.reshape(*weights.scales.shape, -1)
    if weights.zero_points is not None:
        grouped = grouped - weights.zero_points[:, :, None]
    return (grouped * weights.scales[:, :, None]).reshape(weights.num_rows, weights.num_columns)
