"""Computes layers with a recurrent state per sequence: short convolutions and the gated delta rule.
A state is one row of a table; see `kv_cache.StateRows`."""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from fastovms.engine.jit import KERNEL_OPTIONS, as_bits, as_float
from fastovms.engine.kernels.instructions import Field, StepField
from fastovms.engine.kernels.memory import floats_at, integers_at, shorts_at

_helper: Any = numba.njit(inline="never", **KERNEL_OPTIONS)

COLUMNS: Final = 256
"""The number of columns of a convolution that a thread computes at once."""


@_helper
def read_row(step, sequence):
    """Returns the table row of a sequence's initial state."""
    begin = integers_at(step[StepField.STATE_ROW_BEGINS])[sequence]
    return np.int64(integers_at(step[StepField.STATE_ROWS])[begin])


@_helper
def written_row(step, sequence, row):
    """Returns the table row in which to store the state after this row of the step, or -1 if that
    state is not stored."""
    begins = integers_at(step[StepField.SEQUENCE_BEGINS])
    past = np.int64(integers_at(step[StepField.PAST_LENS])[sequence])
    interval = np.int64(integers_at(step[StepField.STATE_INTERVALS])[sequence])
    length = past + row + 1 - begins[sequence]
    if length % interval and row + 1 < begins[sequence + 1]:
        return np.int64(-1)
    begin = integers_at(step[StepField.STATE_ROW_BEGINS])[sequence]
    at = begin + 1 + (length - 1) // interval - past // interval
    return np.int64(integers_at(step[StepField.STATE_ROWS])[at])


@_helper
def load(address, bits, target, count):
    """Reads `count` state values as f32. `bits` is 32 (f32) or 16 (bf16)."""
    if bits == 32:
        x = floats_at(address)
        for k in range(count):
            target[k] = x[k]
    else:
        halves = shorts_at(address)
        for k in range(count):
            target[k] = as_float(np.int32(halves[k]) << np.int32(16))


@_helper
def save(source, address, bits, count):
    """Writes `count` f32 values to a state, rounded to nearest. `bits` is 32 (f32) or 16 (bf16)."""
    if bits == 32:
        z = floats_at(address)
        for k in range(count):
            z[k] = source[k]
    else:
        halves = shorts_at(address)
        for k in range(count):
            whole = as_bits(source[k])
            even = (whole >> np.int32(16)) & np.int32(1)
            halves[k] = np.int16((whole + np.int32(0x7FFF) + even) >> np.int32(16))


@_helper
def _inverse_length(x, size, epsilon):
    total = epsilon
    for k in range(size):
        total += x[k] * x[k]
    return np.float32(1) / np.sqrt(total)


@_helper
def gated_delta(
    step,
    table,
    bits,
    source,
    stride,
    target,
    target_stride,
    head,
    heads,
    size,
    sums,
    width,
    epsilon,
    is_normalized,
):
    """Computes one value head by the gated delta rule, as in Gated DeltaNet. For each token, the
    state [width, size] decays by exp(gate), then `beta * (value - state @ key)` is added under the
    key; the result is `state @ query`.

    Args:
        step: the addresses and counts of the step's rows and states; see `StepField`.
        table: the address of the states, [number of states, sums, width, size].
        bits: the bits of a state value: 32 = f32, 16 = bf16.
        source: the address of f32 rows, `stride` values apart: `heads` queries and as many keys of
            `size` values, `sums` values of `width` values, and as many gates and betas.
        target: the address of the results, f32 rows of `sums` * `width` values, `target_stride`
            apart.
        head: the index of the value head, below `sums`.
        epsilon: added to the squared lengths of queries and keys.
        is_normalized: whether queries and keys are L2-normalized.
    """
    begins = integers_at(step[StepField.SEQUENCE_BEGINS])
    memory = np.empty(width * size, np.float32)
    query, key = np.empty(size, np.float32), np.empty(size, np.float32)
    state_bytes = width * size * (bits // 8)
    group = head // (sums // heads)
    scale = np.float32(1) / np.sqrt(np.float32(size))
    for sequence in range(step[StepField.NUM_SEQUENCES]):
        at = table + (read_row(step, sequence) * sums + head) * state_bytes
        load(at, bits, memory, width * size)
        for row in range(np.int64(begins[sequence]), np.int64(begins[sequence + 1])):
            own = source + 4 * row * stride
            q = floats_at(own + 4 * group * size)
            k = floats_at(own + 4 * (heads + group) * size)
            v = floats_at(own + 4 * (2 * heads * size + head * width))
            others = floats_at(own + 4 * (2 * heads * size + sums * width))
            of_query, of_key = scale, np.float32(1)
            if is_normalized:
                of_query *= _inverse_length(q, size, epsilon)
                of_key = _inverse_length(k, size, epsilon)
            for n in range(size):
                query[n], key[n] = q[n] * of_query, k[n] * of_key
            kept, share = np.exp(others[head]), others[sums + head]
            z = floats_at(target + 4 * (row * target_stride + head * width))
            for c in range(width):
                first = c * size
                known = np.float32(0)
                for n in range(size):
                    known += memory[first + n] * key[n]
                added = (v[c] - known * kept) * share
                found = np.float32(0)
                for n in range(size):
                    number = memory[first + n] * kept + key[n] * added
                    memory[first + n] = number
                    found += number * query[n]
                z[c] = found
            written = written_row(step, sequence, row)
            if written >= 0:
                save(memory, table + (written * sums + head) * state_bytes, bits, width * size)


@_helper
def selective_scan(
    step,
    table,
    bits,
    source,
    stride,
    target,
    target_stride,
    head,
    heads,
    width,
    groups,
    size,
    decays,
):
    """Computes a head of a selective state space (Mamba 2). Its memory, [width, size], is a state.
    For each row it is multiplied by the exponential of decay times time step; the value times the
    time step is added to it under the key; and it returns a value for the query.

    Args:
        step, table, bits, target, target_stride: as in `gated_delta`; the table's states are
            [heads, width, size].
        source: the address of rows of f32, `stride` numbers apart: `heads` time steps, `groups`
            keys of `size` numbers, `heads` values of `width` numbers, and as many queries as keys.
        head: the index of the head, below `heads`. Consecutive heads share a group.
        decays: the address of f32 [heads].
    """
    begins = integers_at(step[StepField.SEQUENCE_BEGINS])
    memory = np.empty(width * size, np.float32)
    state_bytes = width * size * (bits // 8)
    key = heads + head // (heads // groups) * size
    value = heads + groups * size + head * width
    query = key + groups * size + heads * width
    decay = floats_at(decays)[head]
    for sequence in range(step[StepField.NUM_SEQUENCES]):
        at = table + (read_row(step, sequence) * heads + head) * state_bytes
        load(at, bits, memory, width * size)
        for row in range(np.int64(begins[sequence]), np.int64(begins[sequence + 1])):
            own = source + 4 * row * stride
            k, v, q = (
                floats_at(own + 4 * key),
                floats_at(own + 4 * value),
                floats_at(own + 4 * query),
            )
            time = floats_at(own)[head]
            kept = np.exp(decay * time)
            z = floats_at(target + 4 * (row * target_stride + head * width))
            for c in range(width):
                first = c * size
                added = v[c] * time
                found = np.float32(0)
                for n in range(size):
                    number = memory[first + n] * kept + k[n] * added
                    memory[first + n] = number
                    found += number * q[n]
                z[c] = found
            written = written_row(step, sequence, row)
            if written >= 0:
                save(memory, table + (written * heads + head) * state_bytes, bits, width * size)


@_helper
def convolve(
    step,
    table,
    bits,
    source,
    stride,
    target,
    target_stride,
    width,
    first,
    end,
    size,
    weights,
    added,
):
    """Convolves the columns `first` to `end` - 1 of all rows with weights, f32 [size, width], and
    adds f32 [width]. A state has the last `size` values of each column, [width, size]. Rows are
    f32, `stride` and `target_stride` values apart."""
    begins = integers_at(step[StepField.SEQUENCE_BEGINS])
    count = end - first
    last, state = np.empty(size * count, np.float32), np.empty(size * count, np.float32)
    number_size = size * (bits // 8)
    b = floats_at(added + 4 * first)
    for sequence in range(step[StepField.NUM_SEQUENCES]):
        at = table + (read_row(step, sequence) * width + first) * number_size
        load(at, bits, state, size * count)
        for k in range(size):
            for c in range(count):
                last[k * count + c] = state[c * size + k]
        for row in range(np.int64(begins[sequence]), np.int64(begins[sequence + 1])):
            x = floats_at(source + 4 * (row * stride + first))
            z = floats_at(target + 4 * (row * target_stride + first))
            for n in range((size - 1) * count):
                last[n] = last[n + count]
            for c in range(count):
                last[(size - 1) * count + c] = x[c]
                z[c] = b[c]
            for k in range(size):
                w = floats_at(weights + 4 * (k * width + first))
                for c in range(count):
                    z[c] += w[c] * last[k * count + c]
            written = written_row(step, sequence, row)
            if written >= 0:
                for k in range(size):
                    for c in range(count):
                        state[c * size + k] = last[k * count + c]
                at = table + (written * width + first) * number_size
                save(state, at, bits, size * count)


@_helper
def convolve_chunk(program, buffers, step, i, chunk):
    """Computes the columns of a chunk by a `CONVOLVE` instruction."""
    a, out, width = program[i, Field.A], program[i, Field.OUT], program[i, Field.WIDTH]
    convolve(
        step,
        step[program[i, Field.P0]],
        program[i, Field.P4],
        buffers[a, 0] + 4 * program[i, Field.A_START],
        buffers[a, 1],
        buffers[out, 0] + 4 * program[i, Field.OUT_START],
        buffers[out, 1],
        width,
        chunk * COLUMNS,
        min(width, (chunk + 1) * COLUMNS),
        program[i, Field.P1],
        program[i, Field.P2],
        program[i, Field.P3],
    )


@_helper
def gated_delta_chunk(program, buffers, step, i, chunk):
    """Computes a head by a `GATED_DELTA` instruction."""
    a, out = program[i, Field.A], program[i, Field.OUT]
    gated_delta(
        step,
        step[program[i, Field.P0]],
        program[i, Field.P5],
        buffers[a, 0] + 4 * program[i, Field.A_START],
        buffers[a, 1],
        buffers[out, 0] + 4 * program[i, Field.OUT_START],
        buffers[out, 1],
        chunk,
        program[i, Field.P1],
        program[i, Field.P2],
        program[i, Field.P3],
        program[i, Field.P4],
        as_float(np.int32(program[i, Field.P6])),
        program[i, Field.P7],
    )


@_helper
def selective_scan_chunk(program, buffers, step, i, chunk):
    """Computes a head by a `SELECTIVE_SCAN` instruction."""
    a, out = program[i, Field.A], program[i, Field.OUT]
    selective_scan(
        step,
        step[program[i, Field.P0]],
        program[i, Field.P5],
        buffers[a, 0] + 4 * program[i, Field.A_START],
        buffers[a, 1],
        buffers[out, 0] + 4 * program[i, Field.OUT_START],
        buffers[out, 1],
        chunk,
        program[i, Field.P1],
        program[i, Field.P2],
        program[i, Field.P3],
        program[i, Field.P4],
        program[i, Field.P6],
    )
