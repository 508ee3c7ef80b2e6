"""Computes LoRA adapters: multiplies rows with adapters' low-rank matrices.

Each row is multiplied only with its own adapter's matrices, so a step costs the same whichever
adapters its rows use. Small steps are bound by memory bandwidth, and rows with different adapters
read different matrices; matrices are therefore stored in 8 bits, with one scale per matrix row.
This changes an adapter's result by about 1 %, less than the compression of the model's weights.
"""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from fastovms.engine.jit import KERNEL_OPTIONS
from fastovms.engine.kernels.memory import bytes_at, floats_at, longs_at, prefetch

_RANK_STEP: Final = 8
"""Ranks are padded with zeros to a multiple of this."""

_LARGEST: Final = 127

_helper: Any = numba.njit(
    inline="never", no_cpython_wrapper=True, no_cfunc_wrapper=True, **KERNEL_OPTIONS
)


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """A LoRA adapter in the kernel's format.

    Attributes:
        entries: int64 [modules + 1, 4]. For each module of the model: the addresses of `down`, int8
            [rank, columns], of `up`, int8 [rank, rows], and of their scales, f32 [rank]; and the
            rank. All four are 0 for a module that the adapter does not change, and in the last row.
        arrays: the arrays at these addresses, kept alive.
    """

    entries: NDArray[np.int64]
    arrays: tuple[NDArray[Any], ...]

    @property
    def max_rank(self) -> int:
        return int(self.entries[:, 3].max())

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


PackedAdapters = Mapping[int, PackedAdapter]
"""Packed adapters by adapter number."""

Floats = NDArray[np.float32]


def pack_adapter(pairs: Sequence[tuple[Floats, Floats] | None]) -> PackedAdapter:
    """Packs an adapter.

    Args:
        pairs: `down` and `up` of each module, f32 [rank, columns] and [rank, rows]; None = the
            adapter does not change the module.
    """
    entries = np.zeros((len(pairs) + 1, 4), np.int64)
    arrays: list[NDArray[Any]] = []
    for entry, pair in zip(entries, pairs, strict=False):
        if pair is not None:
            (down, down_scales), (up, up_scales) = map(_quantized, pair)
            own = (down, up, down_scales * up_scales)
            entry[:] = [*(array.ctypes.data for array in own), len(down)]
            arrays += own
    return PackedAdapter(entries, tuple(arrays))


def _quantized(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Returns a matrix quantized to 8 bits and padded with zero rows, and the scale of each row."""
    integers = np.zeros((len(matrix) + -len(matrix) % _RANK_STEP, matrix.shape[1]), np.int8)
    scales = np.zeros(len(integers), np.float32)
    scales[: len(matrix)] = np.abs(matrix).max(1) / _LARGEST
    safe = np.where(scales == 0, np.float32(1), scales)[: len(matrix), None]
    np.rint(matrix / safe, out=integers[: len(matrix)], casting="unsafe")
    return integers, scales


@_helper
def _request(address, size):
    """Prefetches memory; address 0 = nothing to prefetch."""
    if address:
        for line in range(0, size, 64):
            prefetch(address + line)


@_helper
def _multiply_down(source, down, factors, width, first, end, target, following):
    """Multiplies a row with the rows `first` to `end` - 1 of `down`, four at a time.

    Args:
        following: the address that is read next, to be prefetched; 0 = none.
    """
    x, f, z = floats_at(source), floats_at(factors), floats_at(target)
    for r in range(first, end, 4):
        _request(down + (r + 4) * width if r + 4 < end else following, 4 * width)
        a0, a1 = bytes_at(down + r * width), bytes_at(down + (r + 1) * width)
        a2, a3 = bytes_at(down + (r + 2) * width), bytes_at(down + (r + 3) * width)
        s0, s1, s2, s3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for k in range(width):
            s0 += x[k] * np.float32(a0[k])
            s1 += x[k] * np.float32(a1[k])
            s2 += x[k] * np.float32(a2[k])
            s3 += x[k] * np.float32(a3[k])
        z[r], z[r + 1], z[r + 2], z[r + 3] = s0 * f[r], s1 * f[r + 1], s2 * f[r + 2], s3 * f[r + 3]


@_helper
def _add_up(inner, up, rank, width, first, end, target, following):
    """Adds the rows of `up`, each multiplied by its number in `inner`, eight at a time. `following`
    is the address that is read next."""
    w = floats_at(inner)
    z = floats_at(target)
    for r in range(0, rank, 8):
        _request(up + (r + 8) * width if r + 8 < rank else following, 8 * width)
        b0, b1 = bytes_at(up + r * width), bytes_at(up + (r + 1) * width)
        b2, b3 = bytes_at(up + (r + 2) * width), bytes_at(up + (r + 3) * width)
        b4, b5 = bytes_at(up + (r + 4) * width), bytes_at(up + (r + 5) * width)
        b6, b7 = bytes_at(up + (r + 6) * width), bytes_at(up + (r + 7) * width)
        w0, w1, w2, w3 = w[r], w[r + 1], w[r + 2], w[r + 3]
        w4, w5, w6, w7 = w[r + 4], w[r + 5], w[r + 6], w[r + 7]
        for k in range(first, end):
            low = np.float32(b0[k]) * w0 + np.float32(b1[k]) * w1 + np.float32(b2[k]) * w2
            high = np.float32(b4[k]) * w4 + np.float32(b5[k]) * w5 + np.float32(b6[k]) * w6
            z[k] += low + np.float32(b3[k]) * w3 + high + np.float32(b7[k]) * w7


def multiply_low_rank(
    is_up,
    entries,
    modules,
    num_modules,
    row,
    width,
    inner,
    inner_stride,
    part,
    num_parts,
    _,
    __,
    ___,
):
    """Computes one chunk of an adapter's contribution to one row. The last three arguments are
    unused: the signature must match `products.multiply_...`.

    Args:
        is_up: 0 = multiply the row by `down` and write to `inner`; 1 = multiply `inner` by `up` and
            add to the row.
        entries: see `PackedAdapter`.
        modules: the address of int64 [num_modules, 3]: a module's index in `entries`, the offset of
            its results in the row, and their number.
        row: the address of f32.
        width: the number of values in the row that is multiplied by `down`.
        inner: the address of f32 [num_modules, inner_stride].
        part: the chunk's index, from 0 to `num_parts` - 1.
    """
    of_adapter, places = longs_at(entries), longs_at(modules)
    for m in range(num_modules):
        at = 4 * places[3 * m]
        rank = of_adapter[at + 3]
        if rank == 0:
            continue
        own = inner + 4 * m * inner_stride
        is_last = m + 1 == num_modules
        if is_up:
            start, count = places[3 * m + 1], places[3 * m + 2]
            first = count * part // num_parts // 16 * 16
            end = count * (part + 1) // num_parts // 16 * 16 if part + 1 < num_parts else count
            following = of_adapter[at + 4] if is_last else of_adapter[4 * places[3 * m + 3] + 1]
            _add_up(own, of_adapter[at + 1], rank, count, first, end, row + 4 * start, following)
        else:
            first = rank // 4 * part // num_parts * 4
            end = rank // 4 * (part + 1) // num_parts * 4
            following = of_adapter[4 * places[0] + 1 if is_last else 4 * places[3 * m + 3]]
            if following and not is_last:
                following += first * width
            down, factors = of_adapter[at], of_adapter[at + 2]
            _multiply_down(row, down, factors, width, first, end, own, following)
