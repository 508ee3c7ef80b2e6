"""Code for instructions that this machine need not have."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding, ir

from fastovms.engine.kernels.compiler import Kernels, find_instructions
from fastovms.engine.kernels.matrices import PackedMatrix, pack, packed_kind
from fastovms.engine.kernels.products import BlockArguments, ProductKind, emit_block
from tests.engine.kernels.matrix_cases import (
    BITS,
    Floats,
    activations,
    all_weights,
    dense,
    quantized,
)

CPUS = {"avx2": "haswell", "avx_vnni": "alderlake", "avx512_vnni": "icelake-server"}
TRIPLE = "x86_64-unknown-linux-gnu"

DOT = """
define {result} @{name}({result} %sum, {bytes} %w, {bytes} %x) {{
  %w32 = zext {bytes} %w to {wide}
  %x32 = sext {bytes} %x to {wide}
  %products = mul {wide} %w32, %x32
  %p0 = shufflevector {wide} %products, {wide} undef, {indices} {first}
  %p1 = shufflevector {wide} %products, {wide} undef, {indices} {second}
  %p2 = shufflevector {wide} %products, {wide} undef, {indices} {third}
  %p3 = shufflevector {wide} %products, {wide} undef, {indices} {fourth}
  %s0 = add {result} %p0, %p1
  %s1 = add {result} %p2, %p3
  %s2 = add {result} %s0, %s1
  %s3 = add {result} %s2, %sum
  ret {result} %s3
}}
"""
"""What `vpdpbusd` does."""


@pytest.fixture(scope="module", autouse=True)
def targets() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def code_of(kind: ProductKind, num_rows: int) -> str:
    """Returns LLVM's code of a function `block` that multiplies a block."""
    module = ir.Module("products")
    module.triple = TRIPLE
    arguments = [ir.IntType(64)] * 8
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "block")
    builder = ir.IRBuilder(function.append_basic_block())
    emit_block(builder, kind, num_rows, BlockArguments(*function.args))
    builder.ret_void()
    return str(module)


@pytest.mark.parametrize(
    ("instructions", "instruction"),
    [
        ("avx2", r"vpmaddwd\s.*%ymm"),
        ("avx_vnni", r"\{vex\}\s+vpdpbusd\s.*%ymm"),
        ("avx512_vnni", r"vpdpbusd\s.*%zmm"),
    ],
)
def test_other_cpus_are_compiled_for(instructions: str, instruction: str) -> None:
    target = binding.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=CPUS[instructions], opt=3)
    for bits, has_zero_points, num_rows in product(BITS, (False, True), (1, 4)):
        kind = ProductKind(instructions, bits, has_zero_points)
        module = binding.parse_assembly(code_of(kind, num_rows))
        module.verify()
        assembly = machine.emit_assembly(module)
        assert len(re.findall(instruction, assembly)) >= 4 * num_rows
        assert "call" not in assembly


def with_plain_dot(code: str, lanes: int) -> str:
    """Replaces `vpdpbusd`, which this machine may not have, by what it does."""
    names = set(re.findall(r'@"?(llvm\.x86\.avx512\.vpdpbusd\.\d+)"?', code))
    (name,) = names
    code = re.sub(rf'declare [^\n]*"{re.escape(name)}"[^\n]*\n', "", code)
    code = code.replace(name, "plain_dot")
    every = [
        "<" + ", ".join(f"i32 {4 * lane + first}" for lane in range(lanes)) + ">"
        for first in range(4)
    ]
    return code + DOT.format(
        name="plain_dot",
        result=f"<{lanes} x i32>",
        bytes=f"<{4 * lanes} x i8>",
        wide=f"<{4 * lanes} x i32>",
        indices=f"<{lanes} x i32>",
        first=every[0],
        second=every[1],
        third=every[2],
        fourth=every[3],
    )


def multiplied(
    engine: binding.ExecutionEngine, matrix: PackedMatrix, integers: Floats, scales: Floats
) -> Floats:
    """Returns the products of a matrix with activations, by a function `block`."""
    kind, num_rows, num_groups = matrix.kind, *scales.shape
    packed = integers.astype(np.int8)
    sums = integers.reshape(num_rows, num_groups, -1).sum(-1).astype(np.int32)
    width = matrix.num_blocks * kind.num_lanes
    found = np.full((num_rows, width), np.nan, np.float32)
    address = engine.get_function_address("block")
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 8)(address)
    for block in range(matrix.num_blocks):
        function(
            matrix.data.ctypes.data + block * kind.block_size(num_groups, matrix.columns),
            packed.ctypes.data,
            sums.ctypes.data,
            scales.ctypes.data,
            found[:, block * kind.num_lanes :].ctypes.data,
            num_groups,
            matrix.columns // kind.columns_of_unit,
            width,
        )
    return found[:, : matrix.num_rows]


@pytest.mark.parametrize("instructions", ["avx_vnni", "avx512_vnni"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_the_layout_for_vnni_fits_the_code(
    kernels: Kernels, instructions: str, num_rows: int
) -> None:
    target = binding.Target.from_triple(TRIPLE)
    engines = {}
    for bits, has_zero_points in product(BITS, (False, True)):
        kind = ProductKind(instructions, bits, has_zero_points)
        code = with_plain_dot(code_of(kind, num_rows), kind.num_lanes)
        machine = target.create_target_machine(
            cpu=binding.get_host_cpu_name(),
            features=binding.get_host_cpu_features().flatten(),
            opt=2,
        )
        engine = binding.create_mcjit_compiler(binding.parse_assembly(code), machine)
        engine.finalize_object()
        engines[kind] = engine
    for weights in all_weights():
        kind = packed_kind(weights, instructions)
        assert kind is not None
        matrix = pack([weights], kind, kernels)
        rows = activations(num_rows, weights.num_columns)
        integers, scales = quantized(rows, matrix.columns, 127)
        found = multiplied(engines[kind], matrix, integers, scales.astype(np.float32))
        seen = integers * scales.astype(np.float32).repeat(matrix.columns, -1)
        matrix_values = dense(weights).astype(np.float64)
        size = np.abs(seen) @ np.abs(matrix_values).T
        assert np.all(np.abs(found - seen @ matrix_values.T) <= 1e-5 * size + 1e-6), weights
        if kind.weight_bits == 6:
            eight = replace(kind, weight_bits=8)
            matrix = pack([weights], eight, kernels)
            same = multiplied(engines[eight], matrix, integers, scales.astype(np.float32))
            assert np.array_equal(found, same), weights


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("sse4_2 avx avx2 fma f16c", "avx2"),
        ("avx avx2 fma f16c avx512f avx512bw avx512vl", "avx2"),
        ("avx avx2 fma f16c avx_vnni", "avx_vnni"),
        ("avx2 fma f16c avx512bw avx512vl avx512_vnni avx_vnni", "avx512_vnni"),
        ("avx2 fma f16c avx512_vnni", "avx2"),
        ("sse4_2 avx", None),
    ],
)
def test_instructions_are_chosen_by_the_flags_of_the_cpu(
    tmp_path: Path, flags: str, expected: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    assert find_instructions(tmp_path / "cpuinfo") == expected


def test_no_kernels_are_for_an_unknown_cpu(tmp_path: Path) -> None:
    assert find_instructions(tmp_path / "missing") is None
