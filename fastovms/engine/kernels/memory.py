"""Memory at addresses, for the kernels."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic


def _floats_at(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(ir.FloatType()))

    return numba.types.CPointer(numba.float32)(numba.int64), generate


def _integers_at(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(32)))

    return numba.types.CPointer(numba.int32)(numba.int64), generate


def _shorts_at(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(16)))

    return numba.types.CPointer(numba.int16)(numba.int64), generate


def _bytes_at(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(8)))

    return numba.types.CPointer(numba.int8)(numba.int64), generate


def _longs_at(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))

    return numba.types.CPointer(numba.int64)(numba.int64), generate


def _half_to_float(_: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return numba.float32(numba.int16), generate


def _float_to_half(_: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.fptrunc(arguments[0], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return numba.int16(numba.float32), generate


def _request_line(_: Any, address: Any) -> Any:
    """Requests a cache line of memory ahead of its use."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = ir.PointerType(ir.IntType(8))
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place, number, number, number])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        read, near, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], place), read, near, data])
        return context.get_dummy_value()

    return numba.void(numba.int64), generate


floats_at: Any = intrinsic(_floats_at)
"""Returns the f32 numbers at an address."""

integers_at: Any = intrinsic(_integers_at)
shorts_at: Any = intrinsic(_shorts_at)
bytes_at: Any = intrinsic(_bytes_at)
longs_at: Any = intrinsic(_longs_at)

widened: Any = intrinsic(_half_to_float)
"""Returns the f32 number that the bits of an f16 stand for."""

narrowed: Any = intrinsic(_float_to_half)
"""Returns the bits of the f16 that is nearest to an f32 number."""

prefetch: Any = intrinsic(_request_line)
