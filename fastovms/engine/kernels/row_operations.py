"""Operations on one row of f32 values each: what a program computes between its products."""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from fastovms.engine.jit import KERNEL_OPTIONS, as_float
from fastovms.engine.kernels.instructions import Opcode
from fastovms.engine.kernels.memory import floats_at

_helper: Any = numba.njit(
    inline="never", no_cpython_wrapper=True, no_cfunc_wrapper=True, **KERNEL_OPTIONS
)


@_helper
def exponential(x):
    """Returns e^x, within 2 ulp for results that are neither 0 nor infinite."""
    x = min(max(x, np.float32(-87)), np.float32(88))
    t = x * np.float32(1.44269504)
    whole = np.floor(t + np.float32(0.5))
    f = t - whole
    p = np.float32(1.535336188319500e-4)
    p = p * f + np.float32(1.339887440266574e-3)
    p = p * f + np.float32(9.618437357674640e-3)
    p = p * f + np.float32(5.550332471162809e-2)
    p = p * f + np.float32(2.402264791363012e-1)
    p = p * f + np.float32(6.931472028550421e-1)
    p = p * f + np.float32(1)
    return p * as_float((np.int32(whole) + np.int32(127)) << np.int32(23))


@_helper
def _add(a, b, out, width):
    x, y, z = floats_at(a), floats_at(b), floats_at(out)
    for k in range(width):
        z[k] = x[k] + y[k]


@_helper
def _multiply(a, b, out, width):
    x, y, z = floats_at(a), floats_at(b), floats_at(out)
    for k in range(width):
        z[k] = x[k] * y[k]


@_helper
def _normalize(a, factors, epsilon, out, width):
    x, w, z = floats_at(a), floats_at(factors), floats_at(out)
    total = np.float32(0)
    for k in range(width):
        total += x[k] * x[k]
    scale = np.float32(1) / np.sqrt(total / np.float32(width) + epsilon)
    for k in range(width):
        z[k] = x[k] * scale * w[k]


@_helper
def _swish(a, out, width):
    x, z = floats_at(a), floats_at(out)
    for k in range(width):
        z[k] = x[k] / (np.float32(1) + exponential(-x[k]))


@_helper
def _subtract(a, b, out, width):
    x, y, z = floats_at(a), floats_at(b), floats_at(out)
    for k in range(width):
        z[k] = x[k] - y[k]


@numba.njit(inline="always")
def _gate_every(a, b, distance, numbers, out, width):
    x, y, z, t = floats_at(a), floats_at(b), floats_at(out), floats_at(numbers)
    limit, steepness, shift = t[0], t[1], t[2]
    for k in range(width):
        v = min(x[distance * k], limit)
        w = min(max(y[distance * k], -limit), limit) + shift
        z[k] = v * w / (np.float32(1) + exponential(-steepness * v))


@_helper
def _gate(a, b, distance, numbers, out, width):
    # Vectors are computed, because the distances are known when it is compiled.
    if distance == 1:
        _gate_every(a, b, 1, numbers, out, width)
    else:
        _gate_every(a, b, 2, numbers, out, width)


@_helper
def _sigmoid(a, out, width):
    x, z = floats_at(a), floats_at(out)
    for k in range(width):
        z[k] = np.float32(1) / (np.float32(1) + exponential(-x[k]))


@_helper
def _softplus(a, out, width):
    x, z = floats_at(a), floats_at(out)
    for k in range(width):
        positive = max(x[k], np.float32(0))
        z[k] = positive + np.log(np.float32(1) + np.exp(-abs(x[k])))


@_helper
def _scale(a, b, out, width):
    x, z = floats_at(a), floats_at(out)
    factor = floats_at(b)[0]
    for k in range(width):
        z[k] = x[k] * factor


@_helper
def _clamp(a, least, largest, out, width):
    x, z = floats_at(a), floats_at(out)
    for k in range(width):
        z[k] = min(max(x[k], least), largest)


@_helper
def _gelu_tanh(a, out, width):
    x, z = floats_at(a), floats_at(out)
    for k in range(width):
        v = x[k]
        inner = np.float32(1.5957691216) * (v + np.float32(0.044715) * v * v * v)
        z[k] = v / (np.float32(1) + exponential(-inner))


@_helper
def _gelu_erf(a, out, width):
    """Computes GELU with erf by formula 7.1.26 of Abramowitz and Stegun, within 1.5e-7."""
    x, z = floats_at(a), floats_at(out)
    for k in range(width):
        v = abs(x[k]) * np.float32(0.70710678)
        t = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * v)
        p = np.float32(1.061405429)
        p = p * t - np.float32(1.453152027)
        p = p * t + np.float32(1.421413741)
        p = p * t - np.float32(0.284496736)
        p = p * t + np.float32(0.254829592)
        tail = p * t * exponential(-v * v)
        share = np.float32(2) - tail if x[k] > 0 else tail
        z[k] = np.float32(0.5) * x[k] * share


@_helper
def copy_row(a, out, width):
    x, z = floats_at(a), floats_at(out)
    for k in range(width):
        z[k] = x[k]


@_helper
def apply_operation(opcode, a, b, out, width, p0, p1):
    """Applies a row-wise instruction to one row."""
    if opcode == Opcode.ADD:
        _add(a, b, out, width)
    elif opcode == Opcode.MULTIPLY:
        _multiply(a, b, out, width)
    elif opcode == Opcode.ADD_CONSTANT:
        _add(a, p0, out, width)
    elif opcode == Opcode.MULTIPLY_CONSTANT:
        _multiply(a, p0, out, width)
    elif opcode == Opcode.NORMALIZE:
        _normalize(a, p0, as_float(np.int32(p1)), out, width)
    elif opcode == Opcode.SWISH:
        _swish(a, out, width)
    elif opcode == Opcode.GELU_TANH:
        _gelu_tanh(a, out, width)
    elif opcode == Opcode.GELU_ERF:
        _gelu_erf(a, out, width)
    elif opcode == Opcode.COPY:
        copy_row(a, out, width)
    elif opcode == Opcode.SOFTPLUS:
        _softplus(a, out, width)
    elif opcode == Opcode.SIGMOID:
        _sigmoid(a, out, width)
    elif opcode == Opcode.SCALE:
        _scale(a, b, out, width)
    elif opcode == Opcode.GATE:
        _gate(a, b, p1, p0, out, width)
    elif opcode == Opcode.SUBTRACT:
        _subtract(a, b, out, width)
    elif opcode == Opcode.CLAMP:
        _clamp(a, as_float(np.int32(p0)), as_float(np.int32(p1)), out, width)
