"""Helpers that emit LLVM vector code for the kernels."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()

Value = Any
"""A value of LLVM's; the package has no types."""

_ZERO: Final = ir.Constant(I64, 0)


def i64(value: int) -> Value:
    """Returns a 64-bit integer constant."""
    return ir.Constant(I64, value)


class VectorCode:
    """Emits code at a builder's position. Addresses are 64-bit integers."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def load(self, address: Value, kind: Value, alignment: int) -> Value:
        """Loads a value of type `kind` from an address."""
        loaded = self.builder.load(self.pointer(address, kind))
        loaded.align = alignment
        return loaded

    def store(self, value: Value, address: Value) -> None:
        """Stores a value at an address that is a multiple of 4."""
        stored = self.builder.store(value, self.pointer(address, value.type))
        stored.align = 4

    def pointer(self, address: Value, kind: Value) -> Value:
        """Returns an address as a pointer to values of the type `kind`."""
        return self.builder.inttoptr(address, ir.PointerType(kind))

    def splat(self, value: Value, vector: Value) -> Value:
        """Returns a vector whose lanes all have the same value."""
        builder = self.builder
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(I32, 0))
        everywhere = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
        return builder.shuffle_vector(one, one, everywhere)

    def function(self, name: str, returns: Value, arguments: list[Value]) -> Value:
        """Returns the external function of this name, and declares it at the first use."""
        kind = ir.FunctionType(returns, arguments)
        found = self.builder.module.globals.get(name)
        return found or ir.Function(self.builder.module, kind, name)

    def variable(self, kind: Value, value: Value) -> Value:
        """Allocates a variable on the stack with an initial value, and returns its pointer."""
        with self.builder.goto_entry_block():
            variable = self.builder.alloca(kind)
        self.builder.store(value, variable)
        return variable


class Loop:
    """A context manager that emits its body as a loop of `count` iterations, at least one. It
    yields the loop's index."""

    def __init__(self, builder: ir.IRBuilder, count: Value) -> None:
        self._builder = builder
        self._count = count

    def __enter__(self) -> Value:
        builder = self._builder
        before = builder.block
        self._body = builder.append_basic_block()
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self._index = builder.phi(I64)
        self._index.add_incoming(_ZERO, before)
        return self._index

    def __exit__(self, *_: object) -> None:
        builder = self._builder
        following = builder.add(self._index, i64(1))
        end = builder.append_basic_block()
        builder.cbranch(builder.icmp_unsigned("<", following, self._count), self._body, end)
        self._index.add_incoming(following, builder.block)
        builder.position_at_end(end)
