"""Multiplies weights of 4 bits with many rows of activations of 8 bits, as chunks of prompts have.

Weights are packed as for activations of 16 bits, with their own zero points or 8. The products of
32 columns fit 16 bits. They are added in 16 bits, two columns at a time, and widened afterwards. So
AVX2 adds 32 products with two instructions; `vpmaddwd` needs two for 16, and f32 one for 8.
Activations have a scale for each 32 columns. The error is that of 9 bits with one scale for a
row's group of 128 columns.
"""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numba
from llvmlite import ir
from numba.extending import intrinsic

from fastovms.engine.kernels.vectors import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    Loop,
    Value,
    VectorCode,
    i64,
)

CHUNK_BITS: Final = 8
"""The bits of an activation."""

UNIT: Final = 32
"""The columns that share a scale of activations."""

ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""The order of eight columns in which activations are stored: that of the weights' bytes."""

_MIDDLE: Final = 8.0
"""The zero point of weights that have none."""

_ROWS: Final = {8: 4, 16: 8}
"""The rows of a tile, by the lanes: as many as there are registers for, with two blocks."""

_BYTES_TOGETHER: Final = 128 * 1024
"""Bytes of activations that are multiplied with all blocks of a part before the next ones, so that
they stay in the second cache."""


@dataclass(frozen=True, slots=True)
class ChunkArguments:
    """The arguments of emitted code, all of them 64-bit integers.

    Attributes:
        weights: the address of the first block.
        activations: the address of int8, [rows, columns], in `ORDER`.
        offsets: the address of f32, [rows, groups], the sums of the activations of each group.
        scales: the address of their scales, f32, [rows, columns / UNIT].
        results: the address of f32, of one lane each, [rows, ...].
        num_groups: the number of groups in a row.
        num_units: the number of units in a group.
        block_size: the bytes of a block.
        result_stride: floats from one row of results to the next.
    """

    weights: Value
    activations: Value
    offsets: Value
    scales: Value
    results: Value
    num_groups: Value
    num_units: Value
    block_size: Value
    result_stride: Value


class ChunkCode(VectorCode):
    """Code for blocks of some lanes, several at once, and a tile of rows.

    Args:
        has_zero_points: whether each group of weights has one.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        lanes: int,
        *,
        num_rows: int,
        num_blocks: int,
        has_zero_points: bool,
    ) -> None:
        super().__init__(builder)
        self._lanes = lanes
        self._rows = range(num_rows)
        self._blocks = range(num_blocks)
        self._has_zero_points = has_zero_points
        self._i8 = ir.VectorType(I8, 4 * lanes)
        self._i16 = ir.VectorType(I16, 2 * lanes)
        self._i32 = ir.VectorType(I32, lanes)
        self._f16 = ir.VectorType(F16, lanes)
        self._f32 = ir.VectorType(F32, lanes)

    def emit(self, given: ChunkArguments) -> None:
        """Emits the products of blocks with a tile of activations."""
        builder, lanes = self.builder, self._lanes
        header_size = lanes * (4 if self._has_zero_points else 2)
        row_units = builder.mul(given.num_groups, given.num_units)
        row_bytes = builder.mul(row_units, i64(UNIT))
        pairs = [(row, block) for row in self._rows for block in self._blocks]
        nothing = ir.Constant(self._f32, [0.0] * lanes)
        totals = {pair: self.variable(self._f32, nothing) for pair in pairs}
        weights = self.variable(I64, given.weights)
        columns = self.variable(I64, given.activations)
        scales = self.variable(I64, given.scales)
        with Loop(builder, given.num_groups) as group:
            header = builder.load(weights)
            builder.store(builder.add(header, i64(header_size)), weights)
            sums = {pair: self.variable(self._f32, nothing) for pair in pairs}
            with Loop(builder, given.num_units):
                at, own, scale_at = (builder.load(one) for one in (weights, columns, scales))
                self._emit_unit(at, own, scale_at, sums, row_bytes, row_units, given.block_size)
                builder.store(builder.add(at, i64(UNIT * lanes // 2)), weights)
                builder.store(builder.add(own, i64(UNIT)), columns)
                builder.store(builder.add(scale_at, i64(4)), scales)
            for block in self._blocks:
                at = builder.add(header, builder.mul(given.block_size, i64(block)))
                scale = builder.fpext(self.load(at, self._f16, 2), self._f32)
                zero = ir.Constant(self._f32, [_MIDDLE] * lanes)
                if self._has_zero_points:
                    halves = self.load(builder.add(at, i64(2 * lanes)), self._f16, 2)
                    zero = builder.fpext(halves, self._f32)
                for row in self._rows:
                    place = builder.add(group, builder.mul(given.num_groups, i64(row)))
                    place = builder.add(given.offsets, builder.mul(place, i64(4)))
                    offset = self.splat(self.load(place, F32, 4), self._f32)
                    summed, total = sums[row, block], totals[row, block]
                    product = self._minus(builder.load(summed), zero, offset)
                    builder.store(self._fma(product, scale, builder.load(total)), total)
        for row, block in pairs:
            place = builder.add(builder.mul(given.result_stride, i64(row)), i64(lanes * block))
            at = builder.add(given.results, builder.mul(place, i64(4)))
            self.store(builder.load(totals[row, block]), at)

    def _emit_unit(
        self,
        weights: Value,
        activations: Value,
        scales: Value,
        sums: Any,
        row_bytes: Value,
        row_units: Value,
        block_size: Value,
    ) -> None:
        builder = self.builder
        partial: dict[tuple[int, int], Value] = {}
        low = ir.Constant(self._i16, [0x0F0F] * self._i16.count)
        four = ir.Constant(self._i16, [4] * self._i16.count)
        at_rows = [builder.add(activations, builder.mul(row_bytes, i64(row))) for row in self._rows]
        for eight in range(UNIT // 8):
            packed = [
                self.load(
                    builder.add(
                        builder.add(weights, i64(4 * self._lanes * eight)),
                        builder.mul(block_size, i64(block)),
                    ),
                    self._i16,
                    2,
                )
                for block in self._blocks
            ]
            for half in (0, 1):
                shifted = [builder.lshr(one, four) for one in packed] if half else packed
                factors = [self._fenced(builder.and_(one, low)) for one in shifted]
                for row in self._rows:
                    place = builder.add(at_rows[row], i64(8 * eight + 4 * half))
                    own = self.splat(self.load(place, I32, 4), self._i32)
                    for block in self._blocks:
                        product = self._pair_sums(factors[block], own)
                        before = partial.get((row, block))
                        if before is not None:
                            product = builder.add(before, product)
                        partial[row, block] = self._fenced(product)
        for row in self._rows:
            place = builder.add(scales, builder.mul(row_units, i64(4 * row)))
            scale = self.splat(self.load(place, F32, 4), self._f32)
            for block in self._blocks:
                wide = builder.sitofp(self._widened(partial[row, block]), self._f32)
                total = sums[row, block]
                builder.store(self._fma(wide, scale, builder.load(total)), total)

    def _pair_sums(self, weights: Value, activations: Value) -> Value:
        """Returns sums of two products of unsigned and signed integers of 8 bits."""
        builder = self.builder
        name = "avx512.pmaddubs.w.512" if self._lanes == 16 else "avx2.pmadd.ub.sw"
        function = self.function(f"llvm.x86.{name}", self._i16, [self._i8, self._i8])
        return builder.call(
            function, [builder.bitcast(one, self._i8) for one in (weights, activations)]
        )

    def _widened(self, sums: Value) -> Value:
        """Returns sums of pairs of 16-bit integers."""
        name = "avx512.pmaddw.d.512" if self._lanes == 16 else "avx2.pmadd.wd"
        function = self.function(f"llvm.x86.{name}", self._i32, [self._i16, self._i16])
        return self.builder.call(function, [sums, ir.Constant(self._i16, [1] * self._i16.count)])

    def _fenced(self, value: Value) -> Value:
        """Returns the value. The instructions around are emitted in this order: LLVM's own needs
        more registers than there are."""
        kind = ir.FunctionType(value.type, [value.type])
        return self.builder.asm(kind, "", "=v,0", [value], True)

    def _fma(self, a: Value, b: Value, c: Value) -> Value:
        name = f"llvm.fma.v{self._lanes}f32"
        return self.builder.call(self.function(name, self._f32, [self._f32] * 3), [a, b, c])

    def _minus(self, total: Value, a: Value, b: Value) -> Value:
        """Returns `total` - a * b."""
        product = self.builder.fmul(a, b, flags=("contract",))
        return self.builder.fsub(total, product, flags=("contract",))


def _multiply_tile(
    _: Any,
    lanes: Any,
    has_zero_points: Any,
    num_blocks: Any,
    weights: Any,
    activations: Any,
    offsets: Any,
    scales: Any,
    results: Any,
    num_groups: Any,
    num_units: Any,
    block_size: Any,
    stride: Any,
) -> Any:
    """Multiplies one or two blocks with a tile, by the code for their form, which is chosen when it
    runs."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        own = lanes.literal_value
        for zeros, blocks in ((False, 1), (False, 2), (True, 1), (True, 2)):
            is_form = builder.and_(
                builder.icmp_signed("==", arguments[1], i64(int(zeros))),
                builder.icmp_signed("==", arguments[2], i64(blocks)),
            )
            with builder.if_then(is_form):
                code = ChunkCode(
                    builder, own, num_rows=_ROWS[own], num_blocks=blocks, has_zero_points=zeros
                )
                code.emit(ChunkArguments(*arguments[3:]))
        return context.get_dummy_value()

    addresses = (weights, activations, offsets, scales, results)
    sizes = (num_groups, num_units, block_size, stride)
    return numba.void(lanes, has_zero_points, num_blocks, *addresses, *sizes), generate


_tile: Any = intrinsic(prefer_literal=True)(_multiply_tile)


def chunk_product_of(lanes: int) -> Any:
    """Returns the function for vectors of `lanes` f32, to be compiled if the CPU has such vectors.
    Its arguments are those of `products.multiply_...`, but for the meaning of activations, sums and
    scales; see `ChunkArguments`. `form` is 0 or 1. There are at least as many rows as in a tile."""
    rows_of_tile = _ROWS[lanes]

    def multiply(w, x, offsets, scales, y, groups, units, stride, rows, bits, form, first, end):
        columns = groups * units * UNIT
        block_size = groups * lanes * (2 + 2 * form) + lanes * columns // 2
        num_together = max(_BYTES_TOGETHER // columns // rows_of_tile, 1) * rows_of_tile
        for start in range(0, rows, num_together):
            row_end = min(start + num_together, rows)
            for block in range(first, end, 2):
                for row in range(start, row_end, rows_of_tile):
                    at = min(row, rows - rows_of_tile)
                    _tile(
                        lanes,
                        form,
                        min(end - block, 2),
                        w + block * block_size,
                        x + at * columns,
                        offsets + 4 * at * groups,
                        scales + 4 * at * groups * units,
                        y + 4 * (block * lanes + at * stride),
                        groups,
                        units,
                        block_size,
                        stride,
                    )

    return multiply
