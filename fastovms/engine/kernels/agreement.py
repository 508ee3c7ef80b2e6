"""Atomic operations on integers in memory, with which threads share the work of a program, and
calls of compiled functions by address."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic


def _fetch_atomic(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        return builder.load_atomic(pointer, "seq_cst", 8)

    return numba.int64(numba.int64), generate


def _store_atomic(_: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        builder.store_atomic(arguments[1], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return numba.void(numba.int64, numba.int64), generate


def _add_atomic(_: Any, address: Any, value: Any) -> Any:
    """Adds to the integer at an address, and returns the previous value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return numba.int64(numba.int64, numba.int64), generate


def _pause_thread(_: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        name = "llvm.x86.sse2.pause"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [])
        return context.get_dummy_value()

    return numba.void(), generate


def _call_function(_: Any, function: Any, arguments: Any) -> Any:
    """Calls the function at an address with a tuple of 64-bit integers as arguments."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        address, packed = given
        integer = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [integer] * len(arguments))
        pointer = builder.inttoptr(address, ir.PointerType(kind))
        values = [builder.extract_value(packed, i) for i in range(len(arguments))]
        builder.call(pointer, values)
        return context.get_dummy_value()

    return numba.void(numba.int64, arguments), generate


call: Any = intrinsic(_call_function)
fetch: Any = intrinsic(_fetch_atomic)
store: Any = intrinsic(_store_atomic)
fetch_add: Any = intrinsic(_add_atomic)
pause: Any = intrinsic(_pause_thread)
sched_yield: Any = numba.types.ExternalFunction("sched_yield", numba.int32())
