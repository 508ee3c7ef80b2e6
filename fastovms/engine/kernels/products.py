"""Matrix multiplication of compressed weights with few rows of activations.

A block has as many rows of weights as a vector has lanes. Integers are multiplied and summed
exactly within a group; each group's sum is scaled in f32. Activations have

- 16 bits without VNNI, and where 8 bits are too imprecise: `pmaddwd` or `vpdpwssd` sum pairs of
  products. On two Zen 3 cores this is as precise as f32, and bound by memory for one row, as 8 bits
  would be. With 4 rows and 4-bit weights, 8 bits would take 0.6 of the time.
- 8 bits with VNNI: `vpdpbusd` sums groups of four products, as in OpenVINO.

Weights are prefetched: without that, one row took 1.3 times as long with 4-bit weights, and 1.1
times with 8-bit weights. If there are several tiles of activations, the first tiles prefetch parts
of the next block: otherwise 8 rows took 1.25 to 1.5 times as long, and 16 rows 1.1 to 1.3 times
(two Zen 4 cores). Each line is prefetched at least twice, because CPUs drop prefetches: with one, 8
rows took 1.5 times as long.
"""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
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

INSTRUCTION_SETS: Final = (
    "avx2",
    "avx_vnni",
    "avx512_vnni",
    "avx_vnni16",
    "avx512_vnni16",
    "avx512",
)
"""The supported instruction sets. Those that end in 16 use 16-bit activations, except for symmetric
4-bit weights."""

MAX_TILE: Final = 4
"""The maximum number of activation rows that are multiplied with a block at once."""

MIDDLE: Final = {4: 8, 6: 32, 8: 128}
"""The offset that makes a signed weight unsigned, by the bits of a weight."""

E2M1: Final = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)
"""Twice the numbers that 4 bits stand for in MXFP4. Packed weights are places in this list."""

_FULL_TILE: Final = MAX_TILE + 1
"""The variant for a tile of `MAX_TILE` rows that is one of several tiles."""

_WIDE_TILE: Final = 8
"""The number of rows of a tile in large steps."""

_AHEAD: Final = 2048
"""The prefetch distance in bytes, with one tile."""

_CACHE_LINE: Final = 64

_ROWS_TOGETHER: Final = 32
_BYTES_TOGETHER: Final = 128 * 1024
"""The bytes of activations that are multiplied with all blocks of a chunk before the next
activations, so that they stay in the L2 cache."""


@dataclass(frozen=True, slots=True)
class ProductKind:
    """A variant of the multiplication code.

    Attributes:
        instructions: one of `INSTRUCTION_SETS`.
        weight_bits: 8, 6 or 4.
        has_zero_points: whether each group has a zero point.
        is_e2m1: whether weights are indices of `E2M1`.
    """

    instructions: str
    weight_bits: int
    has_zero_points: bool
    is_e2m1: bool = False

    @property
    def form(self) -> int:
        """The number of the form among those of as many bits."""
        return 2 if self.is_e2m1 else int(self.has_zero_points)

    @property
    def middle(self) -> int:
        """The number that is added to signed weights."""
        return E2M1[-1] if self.is_e2m1 else MIDDLE[self.weight_bits]

    @property
    def activation_bits(self) -> int:
        """The bits of a quantized activation."""
        if self.instructions.endswith("16"):
            return 8 if self.weight_bits == 4 and not self.has_zero_points else 16
        return 8 if "vnni" in self.instructions else 16

    @property
    def num_lanes(self) -> int:
        """The number of rows of a block."""
        return 16 if self.instructions.startswith("avx512") else 8

    @property
    def columns_of_unit(self) -> int:
        """The number of columns of a unit; group sizes are multiples of it."""
        return 32 if self.weight_bits == 4 else 16

    @property
    def unit_size(self) -> int:
        """The bytes of a unit per row."""
        return self.columns_of_unit * self.weight_bits // 8

    @property
    def is_unsigned(self) -> bool:
        """Whether weights are stored as unsigned integers, with `MIDDLE` added to signed ones."""
        return self.weight_bits != 8 or self.activation_bits == 8

    @property
    def has_chunk_form(self) -> bool:
        """Whether `chunk_products` multiplies such weights."""
        return self.weight_bits == 4 and self.activation_bits == 16 and not self.is_e2m1

    @property
    def header_size(self) -> int:
        """The bytes of f16 scales and zero points in front of a group's weights."""
        return self.num_lanes * (4 if self.has_zero_points else 2)

    def group_size(self, num_columns: int) -> int:
        """Returns the bytes of a group of a block."""
        return self.header_size + self.num_lanes * num_columns * self.weight_bits // 8

    def block_size(self, num_groups: int, columns: int) -> int:
        """Returns the bytes of a block."""
        return num_groups * self.group_size(columns)


@dataclass(frozen=True, slots=True)
class BlockArguments:
    """The arguments of the emitted code, all 64-bit integers.

    Attributes:
        weights: the address of the block.
        activations: the address of the quantized activations, [rows, columns].
        sums: the address of the activations' sums per group, int32 [rows, groups].
        scales: the address of the activations' scales, f32 [rows, groups].
        results: the address of the results, f32 [rows, lanes], rows `result_stride` apart.
        num_groups: the number of groups in a row.
        num_units: the number of units in a group; see `ProductKind.columns_of_unit`.
        ahead: the prefetch distance in bytes.
        apart: the bytes from one prefetched cache line to the next.
        result_stride: f32 values from one row of results to the next.
    """

    weights: Value
    activations: Value
    sums: Value
    scales: Value
    results: Value
    num_groups: Value
    num_units: Value
    ahead: Value
    apart: Value
    result_stride: Value


def emit_block(
    builder: ir.IRBuilder, kind: ProductKind, num_rows: int, arguments: BlockArguments
) -> None:
    """Emits the product of a block with a tile of `num_rows` activation rows. `num_rows` may also
    be `_FULL_TILE` or `_WIDE_TILE`."""
    _Emitter(builder, kind, num_rows).emit(arguments)


class _Emitter(VectorCode):
    def __init__(self, builder: ir.IRBuilder, kind: ProductKind, num_rows: int) -> None:
        super().__init__(builder)
        self.kind = kind
        self.num_rows = MAX_TILE if num_rows == _FULL_TILE else num_rows
        self._is_one_of_several = num_rows > MAX_TILE
        lanes = kind.num_lanes
        self._i8 = ir.VectorType(I8, 4 * lanes)
        self._half_i8 = ir.VectorType(I8, 2 * lanes)
        self._i16 = ir.VectorType(I16, 2 * lanes)
        self._i32 = ir.VectorType(I32, lanes)
        self._f16 = ir.VectorType(F16, lanes)
        self._f32 = ir.VectorType(F32, lanes)
        self._no_sum = ir.Constant(self._i32, [0] * lanes)

    def emit(self, given: BlockArguments) -> None:
        builder, kind = self.builder, self.kind
        rows = range(self.num_rows)
        self._ahead, self._apart = given.ahead, given.apart
        columns = builder.mul(given.num_units, i64(kind.columns_of_unit))
        activation_size = kind.activation_bits // 8
        group_bytes = builder.mul(columns, i64(activation_size))
        row_bytes = builder.mul(given.num_groups, group_bytes)
        totals = [
            self.variable(self._f32, ir.Constant(self._f32, [0.0] * kind.num_lanes)) for _ in rows
        ]
        weights = self.variable(I64, given.weights)
        with Loop(builder, given.num_groups) as group:
            header = builder.load(weights)
            scale = builder.fpext(self.load(header, self._f16, 2), self._f32)
            builder.store(builder.add(header, i64(kind.header_size)), weights)
            in_group = builder.mul(group, i64(4))
            places = [
                builder.add(in_group, builder.mul(given.num_groups, i64(4 * row))) for row in rows
            ]
            starts = [self._start(builder.add(given.sums, place)) for place in places]
            sums = [self.variable(self._i32, start) for start in starts]
            first = builder.add(given.activations, builder.mul(group, group_bytes))
            with Loop(builder, given.num_units) as unit:
                at = builder.load(weights)
                builder.store(builder.add(at, i64(kind.unit_size * kind.num_lanes)), weights)
                offset = builder.mul(unit, i64(kind.columns_of_unit * activation_size))
                columns_at = [
                    builder.add(builder.add(first, offset), builder.mul(row_bytes, i64(row)))
                    for row in rows
                ]
                self._emit_unit(at, columns_at, sums)
            for place, total, summed in zip(places, totals, sums, strict=True):
                product = builder.sitofp(builder.load(summed), self._f32)
                if kind.has_zero_points:
                    zero = self.load(builder.add(header, i64(2 * kind.num_lanes)), self._f16, 2)
                    of_group = self.load(builder.add(given.sums, place), I32, 4)
                    shift = self.splat(builder.sitofp(of_group, F32), self._f32)
                    product = builder.fsub(
                        product,
                        builder.fmul(builder.fpext(zero, self._f32), shift, flags=("contract",)),
                        flags=("contract",),
                    )
                factor = self.splat(self.load(builder.add(given.scales, place), F32, 4), self._f32)
                scaled = builder.fmul(
                    builder.fmul(product, scale, flags=("contract",)), factor, flags=("contract",)
                )
                builder.store(builder.fadd(builder.load(total), scaled, flags=("contract",)), total)
        for row, total in zip(rows, totals, strict=True):
            at = builder.add(given.results, builder.mul(given.result_stride, i64(4 * row)))
            self.store(builder.load(total), at)

    def _start(self, address: Value) -> Value:
        """Returns the initial value of a sum, which cancels the `MIDDLE` added to unsigned
        weights."""
        kind = self.kind
        if not kind.is_unsigned or kind.has_zero_points:
            return self._no_sum
        total = self.load(address, I32, 4)
        too_much = self.builder.mul(total, ir.Constant(I32, -kind.middle))
        return self.splat(too_much, self._i32)

    def _emit_unit(self, at: Value, activations: list[Value], sums: list[Value]) -> None:
        """Adds the products of a unit's columns to `sums`."""
        self._prefetch(at)
        add = self._add_pairs if self.kind.activation_bits == 16 else self._dot_fours
        # All rows use one vector of weights before the next is loaded: there are few registers.
        for number, part in enumerate(self._weights(at)):
            for row, summed in zip(activations, sums, strict=True):
                total = add(self.builder.load(summed), part, self._four_bytes(row, number))
                self.builder.store(total, summed)

    def _prefetch(self, at: Value) -> None:
        """Prefetches the weights that follow, into the L1 or L2 cache. Beyond the end of the
        weights, prefetches have no effect."""
        address = ir.PointerType(I8)
        function = self.function("llvm.prefetch.p0", ir.VoidType(), [address, I32, I32, I32])
        num_lines = -(-self.kind.unit_size * self.kind.num_lanes // _CACHE_LINE)
        nearness = 2 if self._is_one_of_several else 3
        line = self.builder.add(at, self._ahead)
        for number in range(num_lines):
            if number:
                line = self.builder.add(line, self._apart)
            place = self.pointer(line, I8)
            read, near, data = (ir.Constant(I32, value) for value in (0, nearness, 1))
            self.builder.call(function, [place, read, near, data])

    def _weights(self, at: Value) -> Iterator[Value]:
        """Loads a unit's weights, as vectors of two 16-bit or four 8-bit columns per row."""
        builder, kind = self.builder, self.kind
        lanes = kind.num_lanes
        if kind.weight_bits == 8:
            if kind.activation_bits == 8:
                for number in range(4):
                    yield self.load(builder.add(at, i64(4 * lanes * number)), self._i8, 1)
                return
            for number in range(8):
                half = self.load(builder.add(at, i64(2 * lanes * number)), self._half_i8, 1)
                yield builder.sext(half, self._i16)
            return
        places = [builder.add(at, i64(4 * lanes * i)) for i in range(kind.unit_size // 4)]
        if kind.weight_bits == 4:
            shifts, mask = ((0, 4, 8, 12), 0xF) if kind.activation_bits == 16 else ((0, 4), 0x0F0F)
            for place in places:
                packed = self.load(place, self._i16, 1)
                for shift in shifts:
                    yield self._as_factors(self._levels(self._bits(packed, shift, mask)))
            return
        vectors = [self.load(place, self._i16, 1) for place in places]
        if kind.activation_bits == 16:
            for vector in vectors:
                for shift in (0, 6):
                    yield self._bits(vector, shift, 0x3F)
            for vector, shift in ((vectors[0], 8), (vectors[1], 10)):
                high = self._bits(vectors[2], shift, 0x30)
                yield builder.or_(self._bits(vector, 12, 0xF), high)
            return
        for vector in vectors:
            yield self._as_factors(self._bits(vector, 0, 0x3F3F))
        masks = ((6, 0x0303), (4, 0x0C0C), (2, 0x3030))
        low, middle, high = (self._bits(one, *m) for one, m in zip(vectors, masks, strict=True))
        yield self._as_factors(builder.or_(builder.or_(low, middle), high))

    def _levels(self, places: Value) -> Value:
        """Returns the weights at places of `E2M1`, one in each byte, made unsigned. The first one
        becomes 0, as the other half of 16 bits has to be."""
        if not self.kind.is_e2m1:
            return places
        unsigned = [level - E2M1[0] for level in (*E2M1, E2M1[-1])]
        table = ir.Constant(self._i8, unsigned * (self._i8.count // 16))
        name = "avx2.pshuf.b" if self.kind.num_lanes == 8 else "avx512.pshuf.b.512"
        look_up = self.function(f"llvm.x86.{name}", self._i8, [self._i8, self._i8])
        found = self.builder.call(look_up, [table, self.builder.bitcast(places, self._i8)])
        return self.builder.bitcast(found, self._i16)

    def _as_factors(self, vector: Value) -> Value:
        """Casts a vector of 16-bit integers to the type that is multiplied with activations."""
        return vector if self.kind.activation_bits == 16 else self.builder.bitcast(vector, self._i8)

    def _bits(self, vector: Value, shift: int, mask: int) -> Value:
        """Returns `vector >> shift & mask`, for 16-bit integers."""
        if shift:
            shifts = ir.Constant(self._i16, [shift] * self._i16.count)
            vector = self.builder.lshr(vector, shifts)
        return self.builder.and_(vector, ir.Constant(self._i16, [mask] * self._i16.count))

    def _add_pairs(self, total: Value, weights: Value, activations: Value) -> Value:
        """Returns `total` plus the products of pairs of 16-bit integers."""
        builder = self.builder
        pairs = builder.bitcast(activations, self._i16)
        if "avx512_vnni" in self.kind.instructions:
            name, kinds = "llvm.x86.avx512.vpdpwssd.512", [self._i32, self._i16, self._i16]
            return builder.call(self.function(name, self._i32, kinds), [total, weights, pairs])
        name = "avx512.pmaddw.d.512" if self.kind.num_lanes == 16 else "avx2.pmadd.wd"
        multiply = self.function(f"llvm.x86.{name}", self._i32, [self._i16, self._i16])
        products = builder.call(multiply, [weights, pairs])
        if self.num_rows == 1:
            return builder.add(total, products)
        # Without a fence, LLVM reorders the additions and runs out of registers. LLVM has fences
        # (arithmetic.fence) only for floats; they emit no instruction.
        fence = self.function(
            f"llvm.arithmetic.fence.v{self.kind.num_lanes}f32", self._f32, [self._f32]
        )
        summed = builder.bitcast(builder.add(total, products), self._f32)
        return builder.bitcast(builder.call(fence, [summed]), self._i32)

    def _dot_fours(self, total: Value, weights: Value, activations: Value) -> Value:
        """Returns `total` plus the products of groups of four 8-bit integers; weights are
        unsigned."""
        builder = self.builder
        width = 32 * self.kind.num_lanes
        add = self.function(
            f"llvm.x86.avx512.vpdpbusd.{width}", self._i32, [self._i32, self._i8, self._i8]
        )
        return builder.call(add, [total, weights, builder.bitcast(activations, self._i8)])

    def _four_bytes(self, row: Value, number: int) -> Value:
        """Loads the activations for one vector of weights, broadcast to all lanes."""
        place = self.builder.add(row, i64(4 * number))
        return self.splat(self.load(place, I32, 4), self._i32)


_FORMS: Final = tuple(
    (weight_bits, form, num_rows)
    for weight_bits, form in (*product(MIDDLE, (0, 1)), (4, 2))
    for num_rows in (*range(1, MAX_TILE + 1), _FULL_TILE, _WIDE_TILE)
)
"""The bits of a weight, `ProductKind.form`, and the rows of a tile."""


def _multiply_block(
    _: Any,
    instructions: Any,
    weight_bits: Any,
    weight_form: Any,
    num_rows: Any,
    weights: Any,
    activations: Any,
    sums: Any,
    scales: Any,
    results: Any,
    num_groups: Any,
    num_units: Any,
    ahead: Any,
    apart: Any,
    stride: Any,
) -> Any:
    """Multiplies one block by the code variant for its format, which is selected at run time.
    `instructions` is an index of `INSTRUCTION_SETS`, a compile-time constant."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name = INSTRUCTION_SETS[instructions.literal_value]
        for form in _FORMS:
            equal = [
                builder.icmp_signed("==", value, i64(int(number)))
                for value, number in zip(arguments[1:4], form, strict=True)
            ]
            with builder.if_then(builder.and_(builder.and_(equal[0], equal[1]), equal[2])):
                kind = ProductKind(name, form[0], form[1] == 1, form[1] == 2)
                emit_block(builder, kind, form[2], BlockArguments(*arguments[4:]))
        return context.get_dummy_value()

    form = (weight_bits, weight_form, num_rows)
    addresses = (weights, activations, sums, scales, results)
    sizes = (num_groups, num_units, ahead, apart, stride)
    return numba.void(instructions, *form, *addresses, *sizes), generate


_inlined: Any = numba.njit(inline="always")
_block: Any = intrinsic(prefer_literal=True)(_multiply_block)


@_inlined
def _multiply_blocks(
    instructions: int,
    lanes: int,
    size: int,
    size_of_fours: int,
    weights: int,
    activations: int,
    sums: int,
    scales: int,
    results: int,
    num_groups: int,
    num_units: int,
    stride: int,
    num_rows: int,
    weight_bits: int,
    weight_form: int,
    first: int,
    end: int,
) -> None:
    """Multiplies the blocks `first` to `end` - 1 with all rows of activations.

    Args:
        size: the bytes of an activation.
        size_of_fours: the bytes of an activation for symmetric 4-bit weights.
        weight_form: see `ProductKind.form`.
    """
    columns = 32 if weight_bits == 4 else 16
    if weight_bits == 4 and weight_form != 1:
        size = size_of_fours
    row_size = num_groups * num_units * columns * size
    unit_size = columns * weight_bits // 8
    block_size = num_groups * lanes * (2 + 2 * (weight_form == 1) + unit_size * num_units)
    # With 8 bits, 8 rows take hardly longer than 5: rows of two full tiles overlap.
    overlaps = size == 1 and 4 < num_rows < 8
    num_sharing = 4 if num_rows >= 16 else 2
    num_together = max(_ROWS_TOGETHER, _BYTES_TOGETHER // row_size // 8 * 8)
    for start in range(0, num_rows, num_together):
        row_end = min(start + num_together, num_rows)
        for block in range(first, end):
            row = start
            while row < row_end:
                tile, share = min(row_end - row, 4), (row - start) // 4
                at, following, form = row, row + tile, tile
                ahead, apart = _AHEAD, _CACHE_LINE
                if num_rows >= 8 or overlaps:
                    ahead = block_size + _CACHE_LINE * share if share < num_sharing else 0
                    apart = _CACHE_LINE * num_sharing
                    if overlaps:
                        at, tile = min(row, num_rows - 4), 4
                    if tile == 4:
                        form = _FULL_TILE
                    if num_rows > _ROWS_TOGETHER and row_end - row >= 8:
                        following, form = row + 8, _WIDE_TILE
                _block(
                    instructions,
                    weight_bits,
                    weight_form,
                    form,
                    weights + block * block_size,
                    activations + at * row_size,
                    sums + 4 * at * num_groups,
                    scales + 4 * at * num_groups,
                    results + 4 * (block * lanes + at * stride),
                    num_groups,
                    num_units,
                    ahead,
                    apart,
                    stride,
                )
                row = following


# There is a function for each instruction set; it is compiled only if the CPU has the instructions.
# The arguments are 64-bit integers: those of `BlockArguments`, and
#
# rows, bits, form: rows of activations, bits of a weight, `ProductKind.form`
# first, end: the blocks to be multiplied
def multiply_avx2(w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end):
    """Multiplies blocks with AVX2; see `_multiply_blocks`."""
    _multiply_blocks(
        0, 8, 2, 2, w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end
    )


def multiply_avx_vnni(w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end):
    """Multiplies blocks with AVX-VNNI; see `_multiply_blocks`."""
    _multiply_blocks(
        1, 8, 1, 1, w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end
    )


def multiply_avx512_vnni(
    w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end
):
    """Multiplies blocks with AVX512-VNNI; see `_multiply_blocks`."""
    _multiply_blocks(
        2, 16, 1, 1, w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end
    )


def multiply_avx_vnni16(w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end):
    """Multiplies blocks with AVX-VNNI and 16-bit activations; see `_multiply_blocks`."""
    _multiply_blocks(
        3, 8, 2, 1, w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end
    )


def multiply_avx512_vnni16(
    w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end
):
    """Multiplies blocks with AVX512-VNNI and 16-bit activations; see `_multiply_blocks`."""
    _multiply_blocks(
        4, 16, 2, 1, w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end
    )


def multiply_avx512(w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end):
    """Multiplies blocks with AVX-512 without VNNI; see `_multiply_blocks`."""
    _multiply_blocks(
        5, 16, 2, 2, w, x, sums, scales, y, groups, units, stride, rows, bits, form, first, end
    )
