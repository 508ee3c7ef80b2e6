"""Access to memory by address, for the kernels."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic


def _numbers_at(kind: Any, element: Any) -> Any:
    """Returns a numba intrinsic that returns a pointer to values of type `kind` at an address."""

    def numbers_at(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], ir.PointerType(element))

        return numba.types.CPointer(kind)(numba.int64), generate

    return intrinsic(numbers_at)


def _float_to_half(_: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.fptrunc(arguments[0], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return numba.int16(numba.float32), generate


def _half_to_float(_: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.bitcast(arguments[0], ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return numba.float32(numba.int16), generate


def _request_line(_: Any, address: Any) -> Any:
    """Prefetches a cache line."""

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


floats_at: Any = _numbers_at(numba.float32, ir.FloatType())
integers_at: Any = _numbers_at(numba.int32, ir.IntType(32))
shorts_at: Any = _numbers_at(numba.int16, ir.IntType(16))
bytes_at: Any = _numbers_at(numba.int8, ir.IntType(8))
longs_at: Any = _numbers_at(numba.int64, ir.IntType(64))

narrowed: Any = intrinsic(_float_to_half)
"""Returns the bits of the f16 that is nearest to an f32 number."""

widened: Any = intrinsic(_half_to_float)
"""Returns the f32 number of the bits of an f16."""

prefetch: Any = intrinsic(_request_line)
