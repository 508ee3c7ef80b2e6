"""Matrices of compressed weights, and products with them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.kernels.matrices import CompressedWeights
from fastovms.engine.kernels.products import E2M1

Floats = NDArray[np.float32]

SHAPES = ((8, 64, 1), (24, 576, 1), (40, 256, 8), (16, 512, 4), (13, 128, 2), (8, 2048, 64))
"""Rows, columns and group sizes. Rows are not always divisible into blocks."""

BITS = (4, 6, 8)

SMALLEST_GROUPS = (13, 256, 16)
"""The shape with the fewest columns for which integers of more than 4 bits can share a scale."""

EXTREMES = ("random", "lowest", "highest")


def random_weights(
    bits: int, *, is_signed: bool, zeros: str, shape: tuple[int, int, int], values: str = "random"
) -> CompressedWeights:
    """Returns weights whose scales and zero points are exact in f16.

    Args:
        bits: 6 = integers of 8 bits that fit into 6.
        zeros: the kind of zero points: "none", "integers" or "fractions".
        values: "lowest" or "highest" = all integers have this value; "E2M1" = they are MXFP4's.
    """
    rows, columns, groups = shape
    rng = np.random.default_rng(rows + columns)
    size, lowest = rows * columns, -(2 ** (bits - 1)) if is_signed else 0
    highest = lowest + 2**bits - 1
    integers = {
        "random": rng.integers(lowest, highest, size, endpoint=True),
        "lowest": np.full(size, lowest),
        "highest": np.full(size, highest),
        "E2M1": rng.choice(E2M1, size),
    }[values].astype(np.uint8)
    if bits == 4:
        integers = integers[::2] & 15 | integers[1::2] << 4
    scales = rng.uniform(0.5, 2, (rows, groups)).astype(np.float16).astype(np.float32)
    zero_points = {
        "none": None,
        "integers": rng.integers(0, 2**bits, (rows, groups)).astype(np.float32),
        "fractions": rng.integers(-64, 64, (rows, groups)).astype(np.float32) / 4,
    }[zeros]
    held = 4 if bits == 4 else 8
    return CompressedWeights(integers, held, is_signed, scales, zero_points, rows, columns)


def all_weights() -> Iterator[CompressedWeights]:
    """Yields weights of all kinds."""
    for bits, is_signed, zeros in product(BITS, (False, True), ("none", "integers", "fractions")):
        for shape in SHAPES if bits == 4 else (*SHAPES, SMALLEST_GROUPS):
            yield random_weights(bits, is_signed=is_signed, zeros=zeros, shape=shape)
    for shape in SHAPES:
        yield random_weights(8, is_signed=True, zeros="none", shape=shape, values="E2M1")
    for bits, is_signed, values in product(BITS, (False, True), EXTREMES[1:]):
        for zeros in ("none", "integers"):
            yield random_weights(
                bits, is_signed=is_signed, zeros=zeros, shape=(16, 256, 1), values=values
            )


def activations(num_rows: int, num_columns: int) -> Floats:
    """Returns activations. One group is zero, and one has an outlier."""
    rows = np.random.default_rng(num_rows).standard_normal((num_rows, num_columns))
    rows[:, :32] = 0
    rows[:, 40] = 12
    return rows.astype(np.float32)


def quantized(rows: Floats, columns: int, largest: int) -> tuple[Floats, Floats]:
    """Returns the quantized activations in groups of `columns`, and the scale of each group."""
    groups = rows.reshape(len(rows), -1, columns)
    scales = np.abs(groups).max(-1, keepdims=True) / largest
    integers = np.rint(groups / np.where(scales, scales, 1))
    return integers.reshape(rows.shape), scales[..., 0]


def dense(weights: CompressedWeights) -> Floats:
    """Returns the dequantized weights, [rows, columns]."""
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
