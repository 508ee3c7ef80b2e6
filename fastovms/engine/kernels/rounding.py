"""Rounds rows of activations to integers, for the products."""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from fastovms.engine.jit import KERNEL_OPTIONS
from fastovms.engine.kernels.chunk_products import UNIT
from fastovms.engine.kernels.memory import (
    bytes_at,
    floats_at,
    integers_at,
    longs_at,
    shorts_at,
)

_helper: Any = numba.njit(
    inline="never", no_cpython_wrapper=True, no_cfunc_wrapper=True, **KERNEL_OPTIONS
)


@_helper
def quantize16(source, width, columns, target, sums, scales):
    x, q, t, s = floats_at(source), shorts_at(target), integers_at(sums), floats_at(scales)
    for group in range(width // columns):
        first = group * columns
        largest = np.float32(0)
        for k in range(first, first + columns):
            largest = max(largest, abs(x[k]))
        inverse = np.float32(32767) / largest if largest > 0 else np.float32(0)
        total = np.int32(0)
        for k in range(first, first + columns):
            value = np.int32(np.rint(x[k] * inverse))
            q[k] = np.int16(value)
            total += value
        t[group] = total
        s[group] = largest / np.float32(32767)


@_helper
def quantize8(source, width, columns, target, sums, scales):
    x, q, t, s = floats_at(source), bytes_at(target), integers_at(sums), floats_at(scales)
    for group in range(width // columns):
        first = group * columns
        largest = np.float32(0)
        for k in range(first, first + columns):
            largest = max(largest, abs(x[k]))
        inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
        total = np.int32(0)
        for k in range(first, first + columns):
            value = np.int32(np.rint(x[k] * inverse))
            q[k] = np.int8(value)
            total += value
        t[group] = total
        s[group] = largest / np.float32(127)


@_helper
def _spread(x):
    """Returns the low four bytes of an integer, with a byte of zeros after each."""
    x &= 0xFFFFFFFF
    x = (x | x << 16) & 0x0000FFFF0000FFFF
    return (x | x << 8) & 0x00FF00FF00FF00FF


@_helper
def quantize_chunk(source, width, columns, target, offsets, scales):
    """Rounds a row to 8 bits, for `chunk_products`."""
    x, q, t, s = floats_at(source), bytes_at(target), floats_at(offsets), floats_at(scales)
    for group in range(width // columns):
        offset = np.float32(0)
        for unit in range(group * columns // UNIT, (group + 1) * columns // UNIT):
            first = unit * UNIT
            largest = np.float32(0)
            for k in range(first, first + UNIT):
                largest = max(largest, abs(x[k]))
            inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
            total = np.int32(0)
            for k in range(first, first + UNIT):
                value = np.int32(np.rint(x[k] * inverse))
                q[k] = np.int8(value)
                total += value
            s[unit] = largest / np.float32(127)
            offset += s[unit] * np.float32(total)
        t[group] = offset
    eights = longs_at(target)
    for k in range(width // 8):
        eights[k] = _spread(eights[k]) | _spread(eights[k] >> 32) << 8
