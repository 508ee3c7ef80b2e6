"""Low-rank matrices of adapters, by NumPy's results."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.engine.kernels.compiler import Kernels
from fastovms.engine.kernels.instructions import Opcode, StepField
from fastovms.engine.kernels.low_rank import PackedAdapter, pack_adapter
from tests.engine.kernels.matrix_cases import Floats
from tests.engine.kernels.test_programs import instruction, run

COLUMNS = 70
WIDTHS = (50, 20, 37)
"""The result sizes of the matrices, which are adjacent in a row."""


def pair_of(rank: int, width: int, seed: int, size: float = 1.0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    down, up = (rng.normal(0, size, (rank, one)) for one in (COLUMNS, width))
    return down.astype(np.float32), up.astype(np.float32)


def adapter(*ranks: int, seed: int, size: float = 1.0) -> list[tuple[Floats, Floats] | None]:
    """Returns an adapter with a rank for each matrix; 0 = it does not change the matrix."""
    return [
        pair_of(rank, width, seed + index, size) if rank else None
        for index, (rank, width) in enumerate(zip(ranks, WIDTHS, strict=True))
    ]


def change(pairs: list[tuple[Floats, Floats] | None], row: Floats) -> Floats:
    changes = [
        np.zeros(width) if pair is None else pair[0].astype(float) @ row @ pair[1]
        for pair, width in zip(pairs, WIDTHS, strict=True)
    ]
    return np.concatenate(changes).astype(np.float32)


def add_adapters(
    kernels: Kernels, adapters: list[PackedAdapter | None], rows: Floats, num_parts: int
) -> Floats:
    """Returns the sums that adapters add to rows of zeros, each of which has its own adapter."""
    result = np.zeros((len(rows), sum(WIDTHS)), np.float32)
    starts = np.cumsum((0, *WIDTHS[:-1]))
    modules = np.array(list(zip(range(len(WIDTHS)), starts, WIDTHS, strict=True)), np.int64)
    stride = max([one.max_rank for one in adapters if one is not None], default=8)
    inner = np.full((len(rows), len(WIDTHS) * stride), np.nan, np.float32)
    entries = np.array([0 if one is None else one.entries.ctypes.data for one in adapters])
    step = np.zeros(StepField.CACHES, np.int64)
    step[StepField.LOW_RANK] = kernels.low_rank
    step[StepField.ADAPTERS] = entries.ctypes.data
    step[StepField.NUM_PARTS] = num_parts
    step[StepField.INNER] = inner.ctypes.data
    step[StepField.INNER_WIDTH], step[StepField.INNER_STRIDE] = inner.shape[1], stride
    parameters = (modules.ctypes.data, len(modules))
    program = [
        instruction(Opcode.LOW_RANK_DOWN, COLUMNS, *parameters),
        instruction(Opcode.LOW_RANK_UP, 0, *parameters),
    ]
    run(kernels, program, [rows, rows, result], step)
    return result


def activations(num_rows: int) -> Floats:
    return np.random.default_rng(9).normal(0, 1, (num_rows, COLUMNS)).astype(np.float32)


@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_each_row_is_changed_by_its_own_adapter(kernels: Kernels, num_parts: int) -> None:
    known = [adapter(16, 16, 16, seed=1), adapter(3, 0, 9, seed=5), adapter(0, 64, 0, seed=9)]
    packed = [pack_adapter(pairs) for pairs in known]
    rows = activations(6)
    order = (0, None, 1, 2, 0, 1)
    found = add_adapters(
        kernels, [None if one is None else packed[one] for one in order], rows, num_parts
    )
    for row, one, result in zip(rows, order, found, strict=True):
        expected = np.zeros(sum(WIDTHS)) if one is None else change(known[one], row)
        np.testing.assert_allclose(result, expected, rtol=0, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("size", [1e-9, 1e-4, 100.0])
def test_small_and_large_numbers_keep_their_precision(kernels: Kernels, size: float) -> None:
    pairs = adapter(8, 5, 2, seed=3, size=size)
    rows = activations(1)
    [found] = add_adapters(kernels, [pack_adapter(pairs)], rows, 2)
    expected = change(pairs, rows[0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * np.abs(expected).max())


def test_zero_adapter_matrix_adds_zeros(kernels: Kernels) -> None:
    pairs: list[tuple[NDArray[np.float32], NDArray[np.float32]] | None] = [
        (np.zeros((4, COLUMNS), np.float32), np.ones((4, width), np.float32)) for width in WIDTHS
    ]
    assert not add_adapters(kernels, [pack_adapter(pairs)], activations(1), 1).any()
