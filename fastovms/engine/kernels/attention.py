"""Attention over a segment of a sequence's context, block by block of the paged KV cache, with an
online softmax.

A tile of queries (some tokens of one sequence, for one KV head) reads the segment once. With few
queries, cache values are converted to f32 in registers. For an 8-bit cache, the scales are applied
to the queries and softmax weights, which are fewer than the cached values: a score is the dot
product of the scaled query and the integers, minus one correction per block.

With many queries, as in chunks of prompts, a span of the cache is converted to f32 once, and both
products are matrix products in register tiles. Scores have a row for each key and a column for each
query, so that no sum is over the lanes of a vector.

With an 8-bit cache this takes 0.5 to 0.65 of the time per token of converting each block to f32 for
a single row of queries; see `bench/results/performance.md`.
"""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from fastovms.engine.jit import KERNEL_OPTIONS, as_float
from fastovms.engine.kernels.memory import (
    bytes_at,
    floats_at,
    integers_at,
    prefetch,
    shorts_at,
    widened,
)
from fastovms.engine.kernels.programs import head_bytes
from fastovms.engine.kernels.row_operations import exponential
from fastovms.engine.kernels.vectors import F16, F32, I8, I32, Loop, Value, VectorCode, i64

ARGUMENTS: Final = 17
"""The number of arguments of the functions that `attention_of` returns."""

_BITS: Final = (8, 16, 32)
"""The supported sizes of a cached value in bits."""

KEYS: Final = 4
"""The number of keys whose scores are computed at once; block sizes are multiples of it."""

MAX_LANES: Final = 16
"""The number of f32 lanes in the widest vectors; head sizes are multiples of it."""

_MAX_QUERIES: Final = 4
"""The maximum number of queries of one variant of the code."""

_MAX_CONVERTING: Final = 8
"""The maximum number of queries for which cached values are converted at every read. For more
queries, a span is converted once."""

_SPAN: Final = 128
"""The tokens of a span: a multiple of the lanes of all vectors."""

_HIDDEN: Final = np.float32(-1e30)
"""The score of a key that a query does not attend to."""


class _AttentionCode(VectorCode):
    """Emits the attention code for vectors of `lanes` f32 and a cache with `bits` bits per
    value."""

    def __init__(self, builder: ir.IRBuilder, lanes: int, bits: int) -> None:
        super().__init__(builder)
        self._lanes = lanes
        self._bits = bits
        self._f32 = ir.VectorType(F32, lanes)
        self._zeros = ir.Constant(self._f32, [0.0] * lanes)

    def emit_scores(
        self,
        num_queries: int,
        queries: Value,
        keys: Value,
        num_fours: Value,
        size: Value,
        scores: Value,
        stride: Value,
    ) -> None:
        """Emits the dot products of queries, f32 [num_queries, size], with keys, four keys at a
        time.

        Args:
            scores: the address of the f32 results.
            stride: bytes from one query's scores to the next query's.
        """
        builder = self.builder
        row_bytes = builder.mul(size, i64(self._bits // 8))
        num_vectors = builder.udiv(size, i64(self._lanes))
        with Loop(builder, num_fours) as four:
            first = builder.add(keys, builder.mul(builder.mul(four, i64(KEYS)), row_bytes))
            at = [builder.add(first, builder.mul(row_bytes, i64(key))) for key in range(KEYS)]
            sums = [
                [self.variable(self._f32, self._zeros) for _ in range(KEYS)]
                for _ in range(num_queries)
            ]
            with Loop(builder, num_vectors) as vector:
                column = builder.mul(vector, i64(self._lanes))
                loaded = [self._numbers(place, column) for place in at]
                for query, totals in enumerate(sums):
                    place = builder.add(queries, builder.mul(size, i64(4 * query)))
                    place = builder.add(place, builder.mul(column, i64(4)))
                    own = self.load(place, self._f32, 4)
                    for key, total in zip(loaded, totals, strict=True):
                        builder.store(self._fma(key, own, builder.load(total)), total)
            for query, totals in enumerate(sums):
                place = builder.add(scores, builder.mul(stride, i64(query)))
                place = builder.add(place, builder.mul(four, i64(4 * KEYS)))
                self.store(self._sums([builder.load(total) for total in totals]), place)

    def emit_values(
        self,
        num_queries: int,
        weights: Value,
        stride: Value,
        values: Value,
        row_bytes: Value,
        num_values: Value,
        size: Value,
        results: Value,
        factors: Value,
        excess: Value,
    ) -> None:
        """Emits `results * factors + sum(weights * values) - excess`. `factors` and `excess` have
        one number per query.

        Args:
            stride: bytes from one query's weights to the next query's.
            row_bytes: bytes from one value row to the next.
            results: the address of f32 [num_queries, size].
        """
        builder = self.builder
        # Several independent sums hide the latency of additions.
        together = 4 if num_queries <= 2 else 2
        num_vectors = builder.udiv(size, i64(self._lanes))
        num_all = builder.mul(builder.udiv(num_vectors, i64(together)), i64(together))
        for first, num, count in (
            (i64(0), together, builder.udiv(num_vectors, i64(together))),
            (num_all, 1, builder.sub(num_vectors, num_all)),
        ):
            with (
                builder.if_then(builder.icmp_signed("!=", count, i64(0))),
                Loop(builder, count) as index,
            ):
                begin = builder.add(first, builder.mul(index, i64(num)))
                begin = builder.mul(begin, i64(self._lanes))
                columns = [builder.add(begin, i64(self._lanes * n)) for n in range(num)]
                places = [
                    [
                        builder.add(
                            results,
                            builder.mul(builder.add(builder.mul(size, i64(query)), column), i64(4)),
                        )
                        for column in columns
                    ]
                    for query in range(num_queries)
                ]
                sums = [
                    [
                        self.variable(
                            self._f32,
                            builder.fsub(
                                builder.fmul(
                                    self.load(place, self._f32, 4), self._number(factors, query)
                                ),
                                self._number(excess, query),
                            ),
                        )
                        for place in row
                    ]
                    for query, row in enumerate(places)
                ]
                with Loop(builder, num_values) as value:
                    at = builder.add(values, builder.mul(value, row_bytes))
                    loaded = [self._numbers(at, column) for column in columns]
                    for query, totals in enumerate(sums):
                        row = builder.add(weights, builder.mul(stride, i64(query)))
                        row = builder.add(row, builder.mul(value, i64(4)))
                        weight = self.splat(self.load(row, F32, 4), self._f32)
                        for one, total in zip(loaded, totals, strict=True):
                            builder.store(self._fma(one, weight, builder.load(total)), total)
                for row, totals in zip(places, sums, strict=True):
                    for place, total in zip(row, totals, strict=True):
                        self.store(builder.load(total), place)

    def emit_sums(
        self,
        rows: Value,
        depth: Value,
        a: Value,
        a_row: Value,
        a_step: Value,
        b: Value,
        b_row: Value,
        columns: Value,
        c: Value,
        c_row: Value,
    ) -> None:
        """Emits the addition of a product of matrices to the matrix at `c`, f32 [rows, columns].
        `rows` and `columns` are multiples of the lanes.

        Args:
            a, a_row, a_step: the address of f32 [rows, depth], bytes from one row to the next, and
                from one number of a row to the next.
            b, b_row: the address of f32 [depth, columns], and bytes from one row to the next.
            c_row: bytes from one row of results to the next.
        """
        builder = self.builder
        num_vectors = builder.udiv(columns, i64(self._lanes))
        num_pairs = builder.udiv(num_vectors, i64(2))
        tile = range(self._lanes // 2)
        num_tiles = builder.udiv(rows, i64(len(tile)))
        one_left = builder.sub(num_vectors, builder.mul(num_pairs, i64(2)))
        vector_bytes = 4 * self._lanes
        for first, num, count in (
            (i64(0), 2, num_pairs),
            (builder.mul(num_pairs, i64(2 * vector_bytes)), 1, one_left),
        ):
            with (
                builder.if_then(builder.icmp_signed("!=", count, i64(0))),
                Loop(builder, count) as index,
                Loop(builder, num_tiles) as number,
            ):
                begin = builder.add(first, builder.mul(index, i64(num * vector_bytes)))
                row = builder.mul(number, i64(len(tile)))
                own = builder.add(a, builder.mul(row, a_row))
                target = builder.add(builder.add(c, begin), builder.mul(row, c_row))
                places = [builder.add(target, builder.mul(c_row, i64(n))) for n in tile]
                vectors = range(0, num * vector_bytes, vector_bytes)
                at = [[builder.add(place, i64(offset)) for offset in vectors] for place in places]
                sums = [
                    [self.variable(self._f32, self.load(place, self._f32, 4)) for place in each]
                    for each in at
                ]
                with Loop(builder, depth) as step:
                    others = builder.add(builder.add(b, begin), builder.mul(step, b_row))
                    loaded = [
                        self.load(builder.add(others, i64(offset)), self._f32, 4)
                        for offset in vectors
                    ]
                    factors = builder.add(own, builder.mul(step, a_step))
                    for n, totals in enumerate(sums):
                        place = builder.add(factors, builder.mul(a_row, i64(n)))
                        factor = self.splat(self.load(place, F32, 4), self._f32)
                        for one, total in zip(loaded, totals, strict=True):
                            builder.store(self._fma(one, factor, builder.load(total)), total)
                for each, totals in zip(at, sums, strict=True):
                    for place, total in zip(each, totals, strict=True):
                        self.store(builder.load(total), place)

    def _numbers(self, address: Value, column: Value) -> Value:
        """Loads a vector of cached values as f32."""
        builder = self.builder
        place = builder.add(address, builder.mul(column, i64(self._bits // 8)))
        if self._bits == 32:
            return self.load(place, self._f32, 4)
        if self._bits == 16:
            halves = self.load(place, ir.VectorType(F16, self._lanes), 2)
            return builder.fpext(halves, self._f32)
        integers = self.load(place, ir.VectorType(I8, self._lanes), 1)
        return builder.sitofp(builder.zext(integers, ir.VectorType(I32, self._lanes)), self._f32)

    def _number(self, address: Value, index: int) -> Value:
        return self.splat(self.load(self.builder.add(address, i64(4 * index)), F32, 4), self._f32)

    def _fma(self, a: Value, b: Value, c: Value) -> Value:
        name = f"llvm.fma.v{self._lanes}f32"
        return self.builder.call(self.function(name, self._f32, [self._f32] * 3), [a, b, c])

    def _sums(self, vectors: list[Value]) -> Value:
        """Returns a vector with the sum of the lanes of each of four vectors."""
        builder = self.builder
        first, second, third, fourth = self._transposed(vectors)
        total = builder.fadd(builder.fadd(first, second), builder.fadd(third, fourth))
        lanes = self._lanes
        while lanes > 4:
            lanes //= 2
            halves = (range(lanes), range(lanes, 2 * lanes))
            total = builder.fadd(*(self._chosen(total, total, half) for half in halves))
        return total

    def _transposed(self, vectors: list[Value]) -> list[Value]:
        """Transposes four vectors within each group of four lanes: result n consists of the n-th
        lanes of the given vectors."""
        starts, other = range(0, self._lanes, 4), self._lanes
        low = [start + n for start in starts for n in (0, other, 1, other + 1)]
        high = [start + n for start in starts for n in (2, other + 2, 3, other + 3)]
        pairs = [
            [self._chosen(vectors[n], vectors[n + 1], lanes) for n in (0, 2)]
            for lanes in (low, high)
        ]
        low = [start + n for start in starts for n in (0, 1, other, other + 1)]
        high = [start + n for start in starts for n in (2, 3, other + 2, other + 3)]
        return [self._chosen(pair[0], pair[1], lanes) for pair in pairs for lanes in (low, high)]

    def _chosen(self, a: Value, b: Value, lanes: Iterable[int]) -> Value:
        """Returns a shuffle of two vectors by lane number; the lanes of `b` are numbered after
        those of `a`."""
        numbers = list(lanes)
        chosen = ir.Constant(ir.VectorType(I32, len(numbers)), numbers)
        return self.builder.shuffle_vector(a, b, chosen)


def _variant_chooser(emit: Any) -> Any:
    """Returns a numba code generator whose code picks its variant at run time. The first arguments
    of the generated function are the number of lanes (a compile-time constant), the bits per cached
    value, and the number of queries. `emit` writes the code of one variant."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.args[0].literal_value
        most = _MAX_QUERIES * lanes // 16
        for bits, known in product(_BITS, range(1, most + 1)):
            is_variant = builder.and_(
                builder.icmp_signed("==", arguments[1], i64(bits)),
                builder.icmp_signed("==", arguments[2], i64(known)),
            )
            with builder.if_then(is_variant):
                emit(_AttentionCode(builder, lanes, bits), known, *arguments[3:])
        return context.get_dummy_value()

    return generate


def _sums(
    _: Any,
    lanes: Any,
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    e: Any,
    f: Any,
    g: Any,
    h: Any,
    i: Any,
    j: Any,
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _AttentionCode(builder, signature.args[0].literal_value, 32).emit_sums(*arguments[1:])
        return context.get_dummy_value()

    return numba.void(lanes, a, b, c, d, e, f, g, h, i, j), generate


def _scores(
    _: Any, lanes: Any, bits: Any, num: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any
) -> Any:
    given = (lanes, bits, num, a, b, c, d, e, f)
    return numba.void(*given), _variant_chooser(_AttentionCode.emit_scores)


def _values(
    _: Any,
    lanes: Any,
    bits: Any,
    num: Any,
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    e: Any,
    f: Any,
    g: Any,
    h: Any,
    i: Any,
) -> Any:
    given = (lanes, bits, num, a, b, c, d, e, f, g, h, i)
    return numba.void(*given), _variant_chooser(_AttentionCode.emit_values)


_emit_sums: Any = intrinsic(prefer_literal=True)(_sums)
_emit_scores: Any = intrinsic(prefer_literal=True)(_scores)
_emit_values: Any = intrinsic(prefer_literal=True)(_values)
_helper: Any = numba.njit(
    inline="never", no_cpython_wrapper=True, no_cfunc_wrapper=True, **KERNEL_OPTIONS
)


@_helper
def _request(address, size):
    """Prefetches `size` bytes of memory."""
    for line in range(0, size, 64):
        prefetch(address + line)


@_helper
def _scale_queries(queries, stride, num_rows, group, size, factor, target):
    """Writes the queries of all rows, multiplied by `factor`, to `target`: f32 [num_rows * group,
    size]."""
    for n in range(num_rows * group):
        x = floats_at(queries + 4 * (n // group * stride + n % group * size))
        z = floats_at(target + 4 * n * size)
        for k in range(size):
            z[k] = x[k] * factor


@_helper
def _scale_for_block(scaled, num, size, block, target, excess):
    """Multiplies queries by the scales of a block's 8-bit keys. Writes the correction of each query
    to `excess`: the dot product of the scaled query and the keys' zero points."""
    scales, zeros, e = floats_at(block), floats_at(block + 4 * size), floats_at(excess)
    for n in range(num):
        x, z = floats_at(scaled + 4 * n * size), floats_at(target + 4 * n * size)
        total = np.float32(0)
        for k in range(size):
            z[k] = x[k] * scales[k]
            total += z[k] * zeros[k]
        e[n] = total


@_helper
def _softmax_weights(scores, low, high, count, excess, largest, total, factor):
    """Replaces the scores `low` to `high` - 1 of a block by softmax weights that are not yet
    normalized, and the rest of the `count` scores by 0.

    Args:
        excess: the address of the corrections to subtract from the scores; see `_scale_for_block`.
        largest, total: addresses of the running maximum score and sum of weights, which are
            updated.
        factor: the address for the factor by which earlier sums must be rescaled.
    """
    s = floats_at(scores)
    for t in range(min(low, count)):
        s[t] = np.float32(0)
    for t in range(max(high, np.int64(0)), count):
        s[t] = np.float32(0)
    if low >= high:
        floats_at(factor)[0] = np.float32(1)
        return
    top = np.float32(-np.inf)
    for t in range(low, high):
        top = max(top, s[t])
    before = floats_at(largest)[0]
    top = max(top - excess, before)
    shift = top + excess
    for t in range(low, high):
        s[t] = exponential(s[t] - shift)
    added = np.float32(0)
    for t in range(count):
        added += s[t]
    shrunk = exponential(before - top)
    floats_at(largest)[0], floats_at(factor)[0] = top, shrunk
    floats_at(total)[0] = floats_at(total)[0] * shrunk + added


@_helper
def _read_scales(values, first, end, row_bytes, scales, zeros):
    """Copies the scales and zero points of a block's 8-bit values."""
    s, z = floats_at(scales), floats_at(zeros)
    for row in range(first, end):
        own = floats_at(values + row * row_bytes)
        s[row], z[row] = own[0], own[1]


@_helper
def _scale_weights(weights, count, scales, zeros):
    """Multiplies softmax weights by the scales of 8-bit values. Returns the sum of these weights
    times the zero points."""
    w, s, z = floats_at(weights), floats_at(scales), floats_at(zeros)
    total = np.float32(0)
    for t in range(count):
        w[t] *= s[t]
        total += w[t] * z[t]
    return total


@_helper
def _clear(target, count, value):
    z = floats_at(target)
    for k in range(count):
        z[k] = value


@_helper
def _room(num, size, block_size):
    """Returns scratch memory for `_attend_few` with `num` queries."""
    return np.empty(num * (2 * size + block_size + 3) + 2 * block_size, np.float32)


@_helper
def _keep(array):
    """Keeps an array alive up to this call. Numba frees an array after its last use, even while its
    address is still used; other threads could then get the memory."""
    return array.size


@numba.njit(inline="always")
def _attend_few(
    lanes,
    queries,
    stride,
    num_rows,
    own_end,
    window,
    keys,
    values,
    blocks,
    first,
    end,
    heads,
    size,
    group,
    block_size,
    bits,
    scale,
    result,
):
    num = num_rows * group
    room = _room(num, size, block_size)
    scaled = np.int64(room.ctypes.data)
    folded = scaled + 4 * num * size if bits == 8 else scaled
    weights = scaled + 8 * num * size
    of_query = 4 * block_size
    factors = weights + num * of_query
    excess, excess_of_values = factors + 4 * num, factors + 8 * num
    scales, zeros = factors + 12 * num, factors + 12 * num + of_query
    largest = result + 4 * num * size
    total = largest + 4 * num
    _clear(result, num * size, np.float32(0))
    _clear(largest, num, np.float32(-np.inf))
    _clear(total, num, np.float32(0))
    _clear(excess, 2 * num + 2 * block_size, np.float32(0))
    _scale_queries(queries, stride, num_rows, group, size, as_float(np.int32(scale)), scaled)
    key_bytes, value_bytes = head_bytes(block_size, size, bits)
    key_row, value_row, header, value_header = size * bits // 8, size * bits // 8, 0, 0
    if bits == 8:
        header, value_row, value_header = 8 * size, size + 8, 8
    max_queries = lanes // 4
    position = first
    while position < end:
        place = position % block_size
        count = min(end - position, block_size - place)
        block = np.int64(integers_at(blocks)[position // block_size])
        at = keys + block * heads * key_bytes
        at_values = values + block * heads * value_bytes
        _request(at_values + place * value_row, count * value_row)
        if bits == 8:
            _scale_for_block(scaled, num, size, at, folded, excess)
            _read_scales(at_values, place, place + count, value_row, scales, zeros)
        lead = place % KEYS
        fours = (lead + count + KEYS - 1) // KEYS
        own_keys = at + header + (place - lead) * key_row
        for n in range(0, num, max_queries):
            _emit_scores(
                lanes,
                bits,
                min(num - n, max_queries),
                folded + 4 * n * size,
                own_keys,
                fours,
                size,
                weights + n * of_query + 4 * (place - lead),
                of_query,
            )
        if position + count < end:
            following = np.int64(integers_at(blocks)[position // block_size + 1])
            _request(keys + following * heads * key_bytes, key_bytes)
        for n in range(num):
            last = own_end + n // group - (position - place)
            low = max(last - window, place) if window > 0 else place
            of_keys, own = floats_at(excess)[n], weights + n * of_query
            state = (largest + 4 * n, total + 4 * n, factors + 4 * n)
            _softmax_weights(own, low, min(last, place + count), block_size, of_keys, *state)
            if bits == 8:
                of_values = _scale_weights(own, block_size, scales, zeros)
                floats_at(excess_of_values)[n] = of_values
        own_values = at_values + value_header + place * value_row
        for n in range(0, num, max_queries):
            _emit_values(
                lanes,
                bits,
                min(num - n, max_queries),
                weights + n * of_query + 4 * place,
                of_query,
                own_values,
                value_row,
                count,
                size,
                result + 4 * n * size,
                factors + 4 * n,
                excess_of_values + 4 * n,
            )
        position += count
    _keep(room)


@_helper
def _read_rows(at, header, row_bytes, first, count, size, bits, of_rows, target):
    """Writes `count` rows of a block's keys or values to `target`, f32 [count, size].

    Args:
        at: the address of the block.
        header: the bytes before its first row.
        first: the index of the first row.
        of_rows: whether an 8-bit cache has a scale per row (values) instead of per column (keys).
    """
    for row in range(count):
        z = floats_at(target + 4 * row * size)
        source = at + header + (first + row) * row_bytes
        if bits == 8 and of_rows:
            own, q = floats_at(source), bytes_at(source + 8)
            scale, zero = own[0], own[1]
            for k in range(size):
                z[k] = (np.float32(np.uint8(q[k])) - zero) * scale
        elif bits == 8:
            scales, zeros, q = floats_at(at), floats_at(at + 4 * size), bytes_at(source)
            for k in range(size):
                z[k] = (np.float32(np.uint8(q[k])) - zeros[k]) * scales[k]
        elif bits == 16:
            halves = shorts_at(source)
            for k in range(size):
                z[k] = widened(halves[k])
        else:
            x = floats_at(source)
            for k in range(size):
                z[k] = x[k]


@_helper
def _read_span(cache, blocks, position, count, heads, size, block_size, bits, of_rows, target):
    """Writes `count` keys or values of a head from a position on to `target`, f32 [count, size]."""
    head_size = head_bytes(block_size, size, bits)[of_rows]
    header, row_bytes = 0, size * bits // 8
    if bits == 8:
        header, row_bytes = (0, size + 8) if of_rows else (8 * size, size)
    done = np.int64(0)
    while done < count:
        place = (position + done) % block_size
        num = min(count - done, block_size - place)
        block = np.int64(integers_at(blocks)[(position + done) // block_size])
        at = cache + block * heads * head_size
        rows = target + 4 * done * size
        _read_rows(at, header, row_bytes, place, num, size, bits, of_rows, rows)
        done += num


@_helper
def _transpose_queries(queries, stride, num, group, size, factor, target, width):
    """Writes the scaled queries to `target`, f32 [size, width]: one column per query, padded with
    zeros."""
    for k in range(size):
        z = floats_at(target + 4 * k * width)
        for n in range(num):
            x = floats_at(queries + 4 * (n // group * stride + n % group * size))
            z[n] = x[k] * factor
        for n in range(num, width):
            z[n] = np.float32(0)


@_helper
def _hide(scores, stride, first, count, last, window, rows, group, value):
    """Replaces the scores of keys that a row does not attend to by `value`. The keys begin at
    position `first`; row r attends to keys before `last` + r, within the window."""
    for t in range(count):
        s = floats_at(scores + 4 * t * stride)
        position = first + t
        for n in range(min(max(position - last + 1, np.int64(0)), rows) * group):
            s[n] = value
        if window > 0:
            for n in range(max(position - last + window + 1, np.int64(0)) * group, rows * group):
                s[n] = value


@_helper
def _weigh(scores, stride, count, num, tops, totals, factors):
    """Replaces scores, f32 [count, num], by softmax weights that are not yet normalized, and
    updates the largest score and the sum of weights of each query. Writes the factors by which
    earlier sums must be rescaled to `factors`."""
    top, total, factor = floats_at(tops), floats_at(totals), floats_at(factors)
    for n in range(num):
        factor[n] = top[n]
    for t in range(count):
        s = floats_at(scores + 4 * t * stride)
        for n in range(num):
            # LLVM vectorizes this comparison, but not `max`.
            factor[n] = s[n] if s[n] > factor[n] else factor[n]
    for n in range(num):
        shrunk = exponential(top[n] - factor[n])
        top[n] = factor[n]
        factor[n] = shrunk
        total[n] *= shrunk
    for t in range(count):
        s = floats_at(scores + 4 * t * stride)
        for n in range(num):
            s[n] = exponential(s[n] - top[n])


@_helper
def _add_weights(scores, stride, count, num, totals):
    total = floats_at(totals)
    for t in range(count):
        s = floats_at(scores + 4 * t * stride)
        for n in range(num):
            total[n] += s[n]


@_helper
def _copy_numbers(source, count, target):
    x, z = floats_at(source), floats_at(target)
    for k in range(count):
        z[k] = x[k]


@_helper
def _scale_results(results, num, size, factors):
    f = floats_at(factors)
    for n in range(num):
        z, factor = floats_at(results + 4 * n * size), f[n]
        for k in range(size):
            z[k] *= factor


@numba.njit(inline="always")
def _attend_many(
    lanes,
    queries,
    stride,
    num_rows,
    own_end,
    window,
    keys,
    values,
    blocks,
    first,
    end,
    heads,
    size,
    group,
    block_size,
    bits,
    scale,
    result,
):
    num = num_rows * group
    width = -(-num // lanes) * lanes
    # Rows of scores are not apart by a power of two, which would share few places of a cache.
    distance = width + lanes
    room = np.empty((2 * width + _SPAN) * size + _SPAN * distance + 3 * width, np.float32)
    turned = np.int64(room.ctypes.data)
    sums = turned + 4 * width * size
    tile = sums + 4 * width * size
    scores = tile + 4 * _SPAN * size
    tops = scores + 4 * _SPAN * distance
    totals, factors = tops + 4 * width, tops + 8 * width
    factor = as_float(np.int32(scale))
    _transpose_queries(queries, stride, num, group, size, factor, turned, width)
    _clear(sums, width * size, np.float32(0))
    _clear(tops, width, _HIDDEN)
    _clear(totals, width, np.float32(0))
    own, step = 4 * distance, 4 * size
    for position in range(first, end, _SPAN):
        count = min(end - position, _SPAN)
        _read_span(keys, blocks, position, count, heads, size, block_size, bits, 0, tile)
        all_keys = -(-count // lanes) * lanes
        _clear(scores, all_keys * distance, np.float32(0))
        _emit_sums(lanes, all_keys, size, tile, step, 4, turned, 4 * width, width, scores, own)
        is_partial = position + count > own_end
        if window > 0:
            is_partial |= position < own_end + num_rows - 1 - window
        if is_partial:
            _hide(scores, distance, position, count, own_end, window, num_rows, group, _HIDDEN)
        _weigh(scores, distance, count, width, tops, totals, factors)
        if is_partial:
            no_weight = np.float32(0)
            _hide(scores, distance, position, count, own_end, window, num_rows, group, no_weight)
        _add_weights(scores, distance, count, width, totals)
        _scale_results(sums, num, size, factors)
        _read_span(values, blocks, position, count, heads, size, block_size, bits, 1, tile)
        _emit_sums(lanes, width, count, scores, 4, own, tile, step, size, sums, step)
    largest = result + 4 * num * size
    _copy_numbers(sums, num * size, result)
    _copy_numbers(tops, num, largest)
    _copy_numbers(totals, num, largest + 4 * num)
    _keep(room)


def attention_of(lanes: int) -> Any:
    """Returns the attention function for vectors of `lanes` f32. Numba compiles it at its first
    call, so call it only on a CPU with such vectors.

    Its arguments are 64-bit integers:
        q: the address of the first row's queries for one KV head, f32 [group, size].
        stride: the distance between the queries of two rows, in f32 values.
        rows, last: row r, from 0 to `rows` - 1, attends to tokens before `last` + r.
        window: the size of the sliding window in tokens; 0 = none.
        k, v: the addresses of this KV head in the first block of each cache.
        blocks: the address of the sequence's block table, int32.
        first, end: the segment: tokens `first` to `end` - 1 of the sequence.
        heads: the number of KV heads in a block.
        size: the head size.
        group: the number of query heads per KV head.
        block: the block size in tokens.
        bits: the bits of a cached value: 8, 16 or 32.
        scale: the f32 factor of the scores, as raw bits.
        result: the address of f32 [rows * group, size], the weighted sums of values, followed by
            f32 [2, rows * group], the largest scores and the sums of weights.
    """

    def attend(
        q,
        stride,
        rows,
        last,
        window,
        k,
        v,
        blocks,
        first,
        end,
        heads,
        size,
        group,
        block,
        bits,
        scale,
        result,
    ):
        if rows * group > _MAX_CONVERTING:
            _attend_many(
                lanes,
                q,
                stride,
                rows,
                last,
                window,
                k,
                v,
                blocks,
                first,
                end,
                heads,
                size,
                group,
                block,
                bits,
                scale,
                result,
            )
        else:
            _attend_few(
                lanes,
                q,
                stride,
                rows,
                last,
                window,
                k,
                v,
                blocks,
                first,
                end,
                heads,
                size,
                group,
                block,
                bits,
                scale,
                result,
            )

    return attend
