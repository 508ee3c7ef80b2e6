"""Attention over parts of a text, by NumPy's results."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.engine.kernels.attention import ARGUMENTS
from fastovms.engine.kernels.compiler import Kernels
from tests.engine.kernels.conftest import instructions_here
from tests.engine.kernels.matrix_cases import Floats

HEADS, BLOCK, NUM_BLOCKS = 2, 32, 5
LENGTH = 130
SCALE = np.float32(0.3)


@dataclass
class Cache:
    """Random keys and values, and the caches that contain them.

    Attributes:
        keys, values: the dequantized contents, f32 [heads, tokens, size].
    """

    keys: Floats
    values: Floats
    caches: list[NDArray[np.generic]]
    blocks: NDArray[np.int32]


def random_cache(size: int, bits: int) -> Cache:
    rng = np.random.default_rng(size + bits)
    blocks = rng.permutation(NUM_BLOCKS).astype(np.int32)
    shape = (NUM_BLOCKS, HEADS, BLOCK, size)
    if bits != 8:
        dtype = np.float16 if bits == 16 else np.float32
        caches = [rng.normal(size=shape).astype(dtype) for _ in range(2)]
        plain = caches
    else:
        keys = rng.integers(0, 256, (NUM_BLOCKS, HEADS, BLOCK + 8, size), np.uint8)
        values = rng.integers(0, 256, (NUM_BLOCKS, HEADS, BLOCK, size + 8), np.uint8)
        scales = rng.uniform(0.01, 0.02, (NUM_BLOCKS, HEADS, 2, size)).astype(np.float32)
        scales[:, :, 1] = rng.uniform(100, 150, (NUM_BLOCKS, HEADS, size))
        keys[:, :, :8] = scales.view(np.uint8).reshape(NUM_BLOCKS, HEADS, 8, size)
        others = rng.uniform(0.01, 0.02, (NUM_BLOCKS, HEADS, BLOCK, 2)).astype(np.float32)
        others[..., 1] = rng.uniform(100, 150, (NUM_BLOCKS, HEADS, BLOCK))
        values[..., :8] = others.view(np.uint8)
        caches = [keys, values]
        plain = [
            (keys[:, :, 8:] - scales[:, :, 1:]) * scales[:, :, :1],
            (values[..., 8:] - others[..., 1:]) * others[..., :1],
        ]
    texts = [
        np.concatenate([one[block] for block in blocks], 1)[:, :LENGTH].astype(np.float32)
        for one in plain
    ]
    return Cache(*texts, list(caches), blocks)


def attend(
    kernels: Kernels, cache: Cache, queries: Floats, head: int, *given: int
) -> tuple[Floats, Floats, Floats]:
    """Returns the sums of values, the largest scores and the sums of weights of rows of queries,
    f32 [rows, group, size]. `given` contains `last`, `window`, `first`, `end` and the bits."""
    rows, group, size = queries.shape
    last, window, first, end, bits = given
    room = np.full(rows * group * (size + 2), np.nan, np.float32)
    wide = np.zeros((rows, 3, group, size), np.float32)  # others are between the rows
    wide[:, 0] = queries
    keys, values = (one.ctypes.data + one[0, :head].nbytes for one in cache.caches)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * ARGUMENTS)(kernels.attend)
    places = (keys, values, cache.blocks.ctypes.data, first, end)
    shape = (HEADS, size, group, BLOCK, bits, int(SCALE.view(np.int32)), room.ctypes.data)
    function(wide.ctypes.data, wide[0].size, rows, last, window, *places, *shape)
    sums, others = room[: queries.size].reshape(queries.shape), room[queries.size :]
    largest, totals = others.reshape(2, rows, group)
    return sums, largest, totals


@pytest.mark.slow
@pytest.mark.nightly(but=("[64-3-", "[80-5-8-"))
@pytest.mark.parametrize("instructions", instructions_here())
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize(("size", "group"), [(16, 1), (64, 3), (80, 5), (128, 4)])
def test_attention_is_that_of_the_numbers_in_the_cache(
    kernels_for: Callable[[str], Kernels], instructions: str, bits: int, size: int, group: int
) -> None:
    kernels = kernels_for(instructions)
    cache = random_cache(size, bits)
    rng = np.random.default_rng(0)
    for rows, last, window, first, end in (
        (1, 130, 0, 0, 130),
        (1, 1, 0, 0, 1),
        (1, 97, 0, 64, 97),
        (1, 130, 47, 83, 130),
        (1, 130, 47, 96, 128),
        (3, 100, 0, 0, 102),
        (8, 123, 0, 64, 130),
        (8, 60, 5, 55, 67),
        (8, 60, 5, 64, 67),
        (40, 91, 0, 0, 130),
        (40, 91, 70, 21, 130),
    ):
        queries = rng.normal(size=(rows, group, size)).astype(np.float32)
        for head in range(HEADS):
            given = (last, window, first, end, bits)
            sums, largest, totals = attend(kernels, cache, queries, head, *given)
            for row in range(rows):
                low = max(first, last + row - window) if window else first
                high = min(end, last + row)
                if low >= high:
                    assert not totals[row].any()
                    assert not sums[row].any()
                    continue
                keys, values = cache.keys[head, low:high], cache.values[head, low:high]
                scores = SCALE * queries[row].astype(np.float64) @ keys.T
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                np.testing.assert_allclose(largest[row], scores.max(-1), rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(totals[row], weights.sum(-1), rtol=2e-4)
                np.testing.assert_allclose(sums[row], weights @ values, rtol=0, atol=2e-3)
