"""Runs programs instruction by instruction, with several threads and without the GIL.

A program works on f32 buffers with one row per token of the step.
"""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from fastovms.engine.jit import KERNEL_OPTIONS, as_float
from fastovms.engine.kernels.agreement import call as _call
from fastovms.engine.kernels.agreement import fetch as _fetch
from fastovms.engine.kernels.agreement import fetch_add as _fetch_add
from fastovms.engine.kernels.agreement import pause as _pause
from fastovms.engine.kernels.agreement import sched_yield as _sched_yield
from fastovms.engine.kernels.agreement import store as _store
from fastovms.engine.kernels.chunk_products import UNIT
from fastovms.engine.kernels.experts import (
    add_of_experts,
    begins_of,
    choose,
    combine,
    multiply_floats,
    rows_of,
)
from fastovms.engine.kernels.instructions import MAX_FEW_ROWS, Field, Opcode, StepField
from fastovms.engine.kernels.memory import (
    bytes_at,
    floats_at,
    integers_at,
    longs_at,
    narrowed,
    shorts_at,
)
from fastovms.engine.kernels.rounding import quantize8, quantize16, quantize_chunk
from fastovms.engine.kernels.row_operations import apply_operation, copy_row, exponential
from fastovms.engine.kernels.states import (
    COLUMNS,
    convolve_chunk,
    gated_delta_chunk,
    selective_scan_chunk,
)

_ROWS_OF_CHUNK: Final = 8
"""The rows that a thread computes at once, for row-wise operations. Steps with at most this many
rows compute such operations in one thread, because waking others would take longer."""

PRODUCT_ARGUMENTS: Final = 13
"""The number of arguments of `products.multiply_...`"""

_helper: Any = numba.njit(
    inline="never", no_cpython_wrapper=True, no_cfunc_wrapper=True, **KERNEL_OPTIONS
)


_NOT_BEGUN: Final = 1 << 20
_ENDED: Final = 1 << 21
"""The instruction index published after the last instruction; `_NOT_BEGUN` is published before the
first."""

_WAITS_BEFORE_YIELD: Final = 1000


@_helper
def _is_chunk(program, num_rows, step, i, field):
    """Returns whether the activations of an instruction are those of `chunk_products`."""
    return num_rows > MAX_FEW_ROWS and program[i, field] > 0 and step[StepField.CHUNK_PRODUCT] > 0


@_helper
def _multiply_chunk(program, buffers, num_rows, scratch, product, step, i, chunk):
    if _is_chunk(program, num_rows, step, i, Field.P7):
        product = step[StepField.CHUNK_PRODUCT]
    out = program[i, Field.OUT]
    num_blocks, num_chunks = program[i, Field.P1], program[i, Field.P6]
    _call(
        product,
        (
            program[i, Field.P0],
            scratch[0],
            scratch[1],
            scratch[2],
            buffers[out, 0] + 4 * program[i, Field.OUT_START],
            program[i, Field.P2],
            program[i, Field.P3],
            buffers[out, 1],
            num_rows,
            program[i, Field.P4],
            program[i, Field.P5],
            num_blocks * chunk // num_chunks,
            num_blocks * (chunk + 1) // num_chunks,
        ),
    )


@_helper
def _multiply_floats_chunk(program, buffers, num_rows, i, chunk):
    a, out, parts = program[i, Field.A], program[i, Field.OUT], program[i, Field.P6]
    x = buffers[a, 0] + 4 * program[i, Field.A_START]
    y = buffers[out, 0] + 4 * program[i, Field.OUT_START]
    matrix, width, size = program[i, Field.P0], program[i, Field.P1], program[i, Field.WIDTH]
    first, end = size * chunk // parts, size * (chunk + 1) // parts
    multiply_floats(matrix, width, first, end, num_rows, x, buffers[a, 1], y, buffers[out, 1])


@_helper
def _multiply_expert_chunk(program, buffers, scratch, product, i, chunk):
    num_parts, num_blocks, num_experts = (
        program[i, Field.P6],
        program[i, Field.P1],
        program[i, Field.B_STRIDE],
    )
    choice, out = buffers[program[i, Field.C], 0], program[i, Field.OUT]
    used, part = chunk // num_parts, chunk % num_parts
    if used >= integers_at(choice)[0]:
        return
    expert = np.int64(integers_at(choice)[1 + used])
    begins = integers_at(begins_of(choice, num_experts))
    first = np.int64(begins[expert])
    num_groups = program[i, Field.P2]
    _call(
        product,
        (
            program[i, Field.P0] + expert * program[i, Field.A_STRIDE],
            scratch[0] + first * program[i, Field.P7],
            scratch[1] + 4 * first * num_groups,
            scratch[2] + 4 * first * num_groups,
            buffers[out, 0] + 4 * first * program[i, Field.OUT_STRIDE],
            num_groups,
            program[i, Field.P3],
            program[i, Field.OUT_STRIDE],
            np.int64(begins[expert + 1]) - first,
            program[i, Field.P4],
            program[i, Field.P5],
            num_blocks * part // num_parts,
            num_blocks * (part + 1) // num_parts,
        ),
    )


@_helper
def _store_plain(source, address, count, bits):
    x = floats_at(source)
    if bits == 16:
        halves = shorts_at(address)
        for k in range(count):
            halves[k] = narrowed(x[k])
    else:
        t = floats_at(address)
        for k in range(count):
            t[k] = x[k]


@_helper
def _scale_of(low, high):
    """Returns the scale for quantizing values from `low` to `high` to 8 bits."""
    scale = (high - low) / np.float32(255)
    return scale if scale > 0 else np.float32(1e-4)


@_helper
def _integer_of(x):
    return np.int8(np.uint8(min(max(np.rint(x), np.float32(0)), np.float32(255))))


@_helper
def _store_keys8(source, stride, address, row, count, size):
    """Writes `count` rows of keys, `stride` bytes apart, to a head's 8-bit block, and requantizes
    the earlier rows of the block if the range grows."""
    scales, zeros = floats_at(address), floats_at(address + 4 * size)
    data = address + 8 * size
    low, high = np.empty(size, np.float32), np.empty(size, np.float32)
    x = floats_at(source)
    for k in range(size):
        low[k] = high[k] = x[k]
    for number in range(1, count):
        x = floats_at(source + number * stride)
        for k in range(size):
            low[k], high[k] = min(low[k], x[k]), max(high[k], x[k])
    for before in range(row):
        q = bytes_at(data + before * size)
        for k in range(size):
            value = (np.float32(np.uint8(q[k])) - zeros[k]) * scales[k]
            low[k], high[k] = min(low[k], value), max(high[k], value)
    for k in range(size):
        high[k] = _scale_of(low[k], high[k])
        low[k] = -low[k] / high[k]
    for before in range(row):
        q = bytes_at(data + before * size)
        for k in range(size):
            value = (np.float32(np.uint8(q[k])) - zeros[k]) * scales[k]
            q[k] = _integer_of(value / high[k] + low[k])
    for number in range(count):
        x, q = floats_at(source + number * stride), bytes_at(data + (row + number) * size)
        for k in range(size):
            q[k] = _integer_of(x[k] / high[k] + low[k])
    for k in range(size):
        scales[k], zeros[k] = high[k], low[k]


@_helper
def _store_value8(source, address, row, size):
    x, at = floats_at(source), address + row * (size + 8)
    low = high = x[0]
    for k in range(size):
        low, high = min(low, x[k]), max(high, x[k])
    scale = _scale_of(low, high)
    zero = -low / scale
    floats_at(at)[0], floats_at(at)[1] = scale, zero
    q = bytes_at(at + 8)
    for k in range(size):
        q[k] = _integer_of(x[k] / scale + zero)


@_helper
def _store_keys(source, stride, address, row, count, size, bits):
    """Writes the keys of `count` tokens, `stride` bytes apart, to one head of a block."""
    if bits == 8:
        _store_keys8(source, stride, address, row, count, size)
    else:
        for number in range(count):
            target = address + (row + number) * size * (bits // 8)
            _store_plain(source + number * stride, target, size, bits)


@_helper
def _store_value(source, address, row, size, bits):
    if bits == 8:
        _store_value8(source, address, row, size)
    else:
        _store_plain(source, address + row * size * (bits // 8), size, bits)


@_helper
def head_bytes(block_size, size, bits):
    """Returns the bytes of a block per KV head, for keys and for values."""
    if bits == 8:
        return (block_size + 8) * size, block_size * (size + 8)
    return block_size * size * (bits // 8), block_size * size * (bits // 8)


@_helper
def _cache_chunk(program, buffers, step, i, head):
    """Writes the keys and values of one head to the KV cache."""
    cache, heads, size = program[i, Field.P0], program[i, Field.P1], program[i, Field.P2]
    block_size, bits = program[i, Field.P5], program[i, Field.P6]
    key_bytes, value_bytes = head_bytes(block_size, size, bits)
    begins, past_lens, blocks, block_begins = (
        integers_at(step[StepField.SEQUENCE_BEGINS]),
        integers_at(step[StepField.PAST_LENS]),
        integers_at(step[StepField.BLOCKS]),
        integers_at(step[StepField.BLOCK_BEGINS]),
    )
    b, c = program[i, Field.B], program[i, Field.C]
    stride, value_stride = 4 * buffers[b, 1], 4 * buffers[c, 1]
    keys = buffers[b, 0] + 4 * (program[i, Field.B_START] + head * size)
    values = buffers[c, 0] + 4 * (program[i, Field.C_START] + head * size)
    for sequence in range(step[StepField.NUM_SEQUENCES]):
        row, end = np.int64(begins[sequence]), np.int64(begins[sequence + 1])
        while row < end:
            position = past_lens[sequence] + row - begins[sequence]
            place = position % block_size
            count = min(end - row, block_size - place)
            block = np.int64(blocks[block_begins[sequence] + position // block_size])
            at = block * heads + head
            key = step[cache] + at * key_bytes
            _store_keys(keys + row * stride, stride, key, place, count, size, bits)
            for number in range(count):
                value = values + (row + number) * value_stride
                target = step[cache + 1] + at * value_bytes
                _store_value(value, target, place + number, size, bits)
            row += count


@_helper
def _segment_at(step, window, number):
    """Finds a segment of the attention by its number. If there are fewer segments, the first item
    is -1 and the fourth is the number minus the total number of segments.

    Returns seven integers. The first is the index of the segment's sequence. The next two are the
    first row of its tile and the number of rows in the tile. Then come the index of the segment in
    the context, the number of segments of the tile, and the number of rows in all earlier segments.
    The last is the number of tokens that the first row attends to.
    """
    begins, past_lens = (
        integers_at(step[StepField.SEQUENCE_BEGINS]),
        integers_at(step[StepField.PAST_LENS]),
    )
    earlier, length = np.int64(0), step[StepField.SEGMENT]
    for sequence in range(step[StepField.NUM_SEQUENCES]):
        row, end = np.int64(begins[sequence]), np.int64(begins[sequence + 1])
        while row < end:
            rows = min(end - row, step[StepField.TILE])
            last = past_lens[sequence] + row - begins[sequence] + 1
            first = max(last - window, np.int64(0)) // length if window > 0 else np.int64(0)
            num = (last + rows - 2) // length - first + 1
            if number < num:
                return sequence, row, rows, first + number, num, earlier + number * rows, last
            number -= num
            earlier += num * rows
            row += rows
    return -1, np.int64(0), np.int64(0), number, np.int64(0), earlier, np.int64(0)


@_helper
def _attend_chunk(program, buffers, step, i, chunk):
    """Computes attention of a tile's queries for one KV head over one segment."""
    cache, heads, size = program[i, Field.P0], program[i, Field.P1], program[i, Field.P2]
    window, block_size, bits = program[i, Field.P4], program[i, Field.P5], program[i, Field.P6]
    head, group = chunk % heads, program[i, Field.HEADS] // heads
    sequence, row, rows, segment, _, earlier, last = _segment_at(step, window, chunk // heads)
    first = segment * step[StepField.SEGMENT]
    end = min(first + step[StepField.SEGMENT], last + rows - 1)
    if window > 0:
        first = max(first, last - window)
    a = program[i, Field.A]
    query = program[i, Field.A_START] + row * buffers[a, 1] + head * group * size
    key_bytes, value_bytes = head_bytes(block_size, size, bits)
    partial = (earlier * heads + head * rows) * group * (size + 2)
    _call(
        step[StepField.ATTEND],
        (
            buffers[a, 0] + 4 * query,
            buffers[a, 1],
            rows,
            last,
            window,
            step[cache] + head * key_bytes,
            step[cache + 1] + head * value_bytes,
            step[StepField.BLOCKS]
            + 4 * np.int64(integers_at(step[StepField.BLOCK_BEGINS])[sequence]),
            first,
            end,
            heads,
            size,
            group,
            block_size,
            bits,
            program[i, Field.P3],
            step[StepField.PARTIALS] + 4 * partial,
        ),
    )


@_helper
def _add_partials(partials, distance, num, width, at_largest, at_total, sink, target):
    """Combines a query's results of `num` segments, `distance` bytes apart, and writes the
    attention output, f32 [width], to `target`. `sink` is a score without a value (-inf = none)."""
    top = sink
    for n in range(num):
        top = max(top, floats_at(at_largest + n * distance)[0])
    z = floats_at(target)
    for k in range(width):
        z[k] = np.float32(0)
    total = exponential(sink - top)
    for n in range(num):
        factor = exponential(floats_at(at_largest + n * distance)[0] - top)
        total += floats_at(at_total + n * distance)[0] * factor
        x = floats_at(partials + n * distance)
        for k in range(width):
            z[k] += x[k] * factor
    inverse = np.float32(1) / total
    for k in range(width):
        z[k] *= inverse


@_helper
def _add_segments(program, buffers, step, i, head):
    """Combines the segments' results for the query heads of one KV head."""
    heads, size, window = program[i, Field.P1], program[i, Field.P2], program[i, Field.P4]
    group, out = program[i, Field.HEADS] // heads, program[i, Field.OUT]
    number = np.int64(0)
    while True:
        sequence, row, rows, _, num, earlier, _ = _segment_at(step, window, number)
        if sequence < 0:
            return
        queries = rows * group
        distance = 4 * heads * queries * (size + 2)
        own = step[StepField.PARTIALS] + 4 * (earlier * heads + head * rows) * group * (size + 2)
        for n in range(queries):
            at = own + 4 * queries * size + 4 * n
            query = head * group + n % group
            target = (row + n // group) * buffers[out, 1] + query * size
            sinks = program[i, Field.P7]
            _add_partials(
                own + 4 * n * size,
                distance,
                num,
                size,
                at,
                at + 4 * queries,
                floats_at(sinks)[query] if sinks != 0 else np.float32(-np.inf),
                buffers[out, 0] + 4 * target,
            )
        number += num


@_helper
def _adapt_chunk(program, buffers, step, i, chunk):
    """Computes one chunk of a LoRA instruction for one row."""
    is_up, num_parts = program[i, Field.OPCODE] == Opcode.LOW_RANK_UP, step[StepField.NUM_PARTS]
    row = chunk // num_parts
    entries = longs_at(step[StepField.ADAPTERS])[row]
    if entries == 0:
        return
    buffer, start = (
        (program[i, Field.OUT], program[i, Field.OUT_START])
        if is_up
        else (program[i, Field.A], program[i, Field.A_START])
    )
    _call(
        step[StepField.LOW_RANK],
        (
            np.int64(is_up),
            entries,
            program[i, Field.P0],
            program[i, Field.P1],
            buffers[buffer, 0] + 4 * (start + row * buffers[buffer, 1]),
            program[i, Field.WIDTH],
            step[StepField.INNER] + 4 * row * step[StepField.INNER_WIDTH],
            step[StepField.INNER_STRIDE],
            chunk % num_parts,
            num_parts,
            np.int64(0),
            np.int64(0),
            np.int64(0),
        ),
    )


@_helper
def _num_chunks(program, num_rows, step, i):
    opcode = program[i, Field.OPCODE]
    if opcode in (Opcode.PRODUCT, Opcode.FLOAT_PRODUCT):
        return program[i, Field.P6]
    if opcode == Opcode.EXPERTS:
        # The number of chosen experts cannot be used: the next choice changes it, and a late thread
        # may still ask for this number when all chunks are done.
        num_pairs = num_rows * program[i, Field.HEADS]
        return min(num_pairs, program[i, Field.B_STRIDE]) * program[i, Field.P6]
    if opcode == Opcode.CONVOLVE:
        return -(-program[i, Field.WIDTH] // COLUMNS)
    if opcode == Opcode.GATED_DELTA:
        return program[i, Field.P3]
    if opcode == Opcode.SELECTIVE_SCAN:
        return program[i, Field.P1]
    if opcode == Opcode.ATTEND:
        beyond = np.int64(1) << 40
        num_segments = beyond - _segment_at(step, program[i, Field.P4], beyond)[3]
        return num_segments * program[i, Field.P1]
    if opcode == Opcode.CACHE or opcode == Opcode.ADD_SEGMENTS:
        return program[i, Field.P1]
    if opcode == Opcode.LOW_RANK_DOWN or opcode == Opcode.LOW_RANK_UP:
        return num_rows * step[StepField.NUM_PARTS]
    if opcode == Opcode.QUANTIZE and program[i, Field.P2] > 0:
        return np.int64(1)
    return (num_rows + _ROWS_OF_CHUNK - 1) // _ROWS_OF_CHUNK


@_helper
def _compute_chunk(program, buffers, num_rows, scratch, product, step, i, chunk):
    opcode = program[i, Field.OPCODE]
    if opcode == Opcode.PRODUCT:
        _multiply_chunk(program, buffers, num_rows, scratch, product, step, i, chunk)
    elif opcode == Opcode.EXPERTS:
        _multiply_expert_chunk(program, buffers, scratch, product, i, chunk)
    elif opcode == Opcode.FLOAT_PRODUCT:
        _multiply_floats_chunk(program, buffers, num_rows, i, chunk)
    elif opcode == Opcode.ATTEND:
        _attend_chunk(program, buffers, step, i, chunk)
    elif opcode == Opcode.CONVOLVE:
        convolve_chunk(program, buffers, step, i, chunk)
    elif opcode == Opcode.GATED_DELTA:
        gated_delta_chunk(program, buffers, step, i, chunk)
    elif opcode == Opcode.SELECTIVE_SCAN:
        selective_scan_chunk(program, buffers, step, i, chunk)
    elif opcode == Opcode.CACHE:
        _cache_chunk(program, buffers, step, i, chunk)
    elif opcode == Opcode.ADD_SEGMENTS:
        _add_segments(program, buffers, step, i, chunk)
    elif opcode == Opcode.LOW_RANK_DOWN or opcode == Opcode.LOW_RANK_UP:
        _adapt_chunk(program, buffers, step, i, chunk)
    else:
        first = chunk * _ROWS_OF_CHUNK
        end = min(first + _ROWS_OF_CHUNK, num_rows)
        if opcode == Opcode.QUANTIZE:
            _quantize(program, buffers, first, end, num_rows, scratch, step, i)
        else:
            _apply_to_rows(program, buffers, first, end, i)


@_helper
def _help(program, buffers, scratch, product, step, agreement):
    """Computes chunks of published instructions until the program ends."""
    next_chunk, num_done, rows = agreement + 64, agreement + 128, agreement + 192
    while True:
        claimed = _fetch_add(next_chunk, 1)
        i, chunk = claimed >> 32, claimed & 0xFFFFFFFF
        if i == _ENDED:
            return
        if i != _NOT_BEGUN:
            num_rows = _fetch(rows)
            if chunk < _num_chunks(program, num_rows, step, i):
                _compute_chunk(program, buffers, num_rows, scratch, product, step, i, chunk)
                _fetch_add(num_done, 1)
                continue
        while _fetch(next_chunk) >> 32 == i:
            _pause()


@_helper
def _compute_with_others(program, buffers, num_rows, scratch, product, step, i, agreement):
    """Publishes the chunks of an instruction to the other threads, computes chunks itself, and
    waits until all chunks are done."""
    next_chunk, num_done, rows = agreement + 64, agreement + 128, agreement + 192
    num_chunks = _num_chunks(program, num_rows, step, i)
    _store(num_done, 0)
    _store(rows, num_rows)
    _store(next_chunk, i << 32)
    while True:
        claimed = _fetch_add(next_chunk, 1) & 0xFFFFFFFF
        if claimed >= num_chunks:
            break
        _compute_chunk(program, buffers, num_rows, scratch, product, step, i, claimed)
        _fetch_add(num_done, 1)
    num_waits = 0
    while _fetch(num_done) < num_chunks:
        _pause()
        num_waits += 1
        if num_waits % _WAITS_BEFORE_YIELD == 0:
            _sched_yield()


@_helper
def _quantize(program, buffers, first, end, num_rows, scratch, step, i):
    """Quantizes the rows `first` to `end` - 1, or all pairs for an instruction of experts."""
    integers, sums, scales = scratch[0], scratch[1], scratch[2]
    a, width, columns = program[i, Field.A], program[i, Field.WIDTH], program[i, Field.P0]
    heads, num_experts = program[i, Field.HEADS], program[i, Field.P2]
    is_chunk = _is_chunk(program, num_rows, step, i, Field.P3)
    choice, first, end = buffers[program[i, Field.C], 0], first * heads, end * heads
    if num_experts > 0:
        first = np.int64(0)
        end = np.int64(integers_at(begins_of(choice, num_experts))[num_experts])
    for n in range(first, end):
        row = n // heads
        if num_experts > 0:
            row = np.int64(integers_at(rows_of(choice, num_experts))[n])
        source = buffers[a, 0] + 4 * (program[i, Field.A_START] + row * buffers[a, 1])
        source += 4 * (n % heads) * program[i, Field.A_STRIDE]
        at = 4 * n * (width // columns)
        if is_chunk:
            by_unit = scales + 4 * n * (width // UNIT)
            quantize_chunk(source, width, columns, integers + n * width, sums + at, by_unit)
        elif program[i, Field.P1] == 8:
            quantize8(source, width, columns, integers + n * width, sums + at, scales + at)
        else:
            target = integers + 2 * n * width
            quantize16(source, width, columns, target, sums + at, scales + at)


@_helper
def _choose(program, buffers, num_rows, i):
    a = program[i, Field.A]
    choose(
        buffers[a, 0] + 4 * program[i, Field.A_START],
        buffers[a, 1],
        num_rows,
        buffers[program[i, Field.OUT], 0],
        program[i, Field.P0],
        program[i, Field.P1],
        program[i, Field.P2],
        program[i, Field.P3],
        program[i, Field.P4],
        as_float(np.int32(program[i, Field.P5])),
        as_float(np.int32(program[i, Field.P6])),
        program[i, Field.A_STRIDE],
        program[i, Field.B_STRIDE],
    )


@_helper
def _combine(program, buffers, num_rows, i):
    out = program[i, Field.OUT]
    combine(
        buffers[program[i, Field.A], 0],
        program[i, Field.WIDTH],
        num_rows,
        program[i, Field.P0],
        program[i, Field.P1],
        buffers[program[i, Field.C], 0],
        buffers[out, 0] + 4 * program[i, Field.OUT_START],
        buffers[out, 1],
    )


@_helper
def _apply_to_rows(program, buffers, first, end, i):
    opcode, width = program[i, Field.OPCODE], program[i, Field.WIDTH]
    a, b, out = program[i, Field.A], program[i, Field.B], program[i, Field.OUT]
    for row in range(first, end):
        source = buffers[a, 0] + 4 * (program[i, Field.A_START] + row * buffers[a, 1])
        other = buffers[b, 0] + 4 * (program[i, Field.B_START] + row * buffers[b, 1])
        target = buffers[out, 0] + 4 * (program[i, Field.OUT_START] + row * buffers[out, 1])
        for head in range(program[i, Field.HEADS]):
            apply_operation(
                opcode,
                source + 4 * head * program[i, Field.A_STRIDE],
                other + 4 * head * program[i, Field.B_STRIDE],
                target + 4 * head * program[i, Field.OUT_STRIDE],
                width,
                program[i, Field.P0],
                program[i, Field.P1],
            )


@_helper
def _gather(program, buffers, step, i):
    a, out = program[i, Field.A], program[i, Field.OUT]
    indices = longs_at(step[StepField.SAMPLED])
    for row in range(step[StepField.NUM_SAMPLED]):
        source = buffers[a, 0] + 4 * (program[i, Field.A_START] + indices[row] * buffers[a, 1])
        copy_row(source, buffers[out, 0] + 4 * row * buffers[out, 1], program[i, Field.WIDTH])


@_helper
def _lead(program, buffers, num_rows, scratch, product, step, agreement):
    for i in range(program.shape[0]):
        opcode = program[i, Field.OPCODE]
        if opcode == Opcode.CHOOSE:
            _choose(program, buffers, num_rows, i)
        elif opcode == Opcode.COMBINE:
            _combine(program, buffers, num_rows, i)
        elif opcode == Opcode.ADD_OF_EXPERTS:
            add_of_experts(
                buffers[program[i, Field.A], 0],
                program[i, Field.WIDTH],
                buffers[program[i, Field.C], 0],
                program[i, Field.P1],
                program[i, Field.P0],
            )
        elif opcode == Opcode.GATHER:
            _gather(program, buffers, step, i)
            num_rows = step[StepField.NUM_SAMPLED]
            if num_rows == 0:
                break
        elif num_rows > _ROWS_OF_CHUNK or opcode in (
            Opcode.PRODUCT,
            Opcode.FLOAT_PRODUCT,
            Opcode.EXPERTS,
            Opcode.ATTEND,
            Opcode.CONVOLVE,
            Opcode.GATED_DELTA,
            Opcode.SELECTIVE_SCAN,
            Opcode.LOW_RANK_DOWN,
            Opcode.LOW_RANK_UP,
        ):
            _compute_with_others(program, buffers, num_rows, scratch, product, step, i, agreement)
        else:
            for chunk in range(_num_chunks(program, num_rows, step, i)):
                _compute_chunk(program, buffers, num_rows, scratch, product, step, i, chunk)
    _store(agreement + 64, _ENDED << 32)


@_helper
def _take_part(program, buffers, num_rows, scratch, product, step):
    """Leads if this is the first thread, or helps the leader. No thread waits for one that has not
    started or is suspended, unless that thread is in the middle of a chunk."""
    agreement = scratch[3]
    if _fetch_add(agreement, 1) == 0:
        _lead(program, buffers, num_rows, scratch, product, step, agreement)
    else:
        _help(program, buffers, scratch, product, step, agreement)


def run_program(program, buffers, num_rows, scratch, product, step, num_threads):
    """Runs a program.

    Args:
        program: int64 [instructions, NUM_FIELDS].
        buffers: int64 [buffers, 2]: each buffer's address, and its row length in f32 values.
        num_rows: the number of rows in the step.
        scratch: int64 [4]: the addresses of memory for quantized integers, for their sums per
            group, for the groups' scales, and of four cache lines for the synchronization of
            threads.
        product: the address of the matrix multiplication.
        step: int64, see `StepField`.
        num_threads: the number of threads that compute.
    """
    _store(scratch[3], 0)
    _store(scratch[3] + 64, _NOT_BEGUN << 32)
    for _ in numba.prange(num_threads):
        _take_part(program, buffers, num_rows, scratch, product, step)


def address_of(array):
    """Returns the address of an array. NumPy's own way takes 10 times as long in the middle of a
    step."""
    return array.ctypes.data
