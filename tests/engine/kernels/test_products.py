"""Tests of code for instructions that this machine may lack."""

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
from fastovms.engine.kernels.products import (
    INSTRUCTION_SETS,
    BlockArguments,
    ProductKind,
    emit_block,
)
from tests.engine.kernels.matrix_cases import (
    BITS,
    Floats,
    activations,
    all_weights,
    dense,
    quantized,
)

FORMS = [*product(BITS, (False, True)), (4, False, True)]
"""The bits of weights, whether they have zero points, and whether they are those of E2M1."""

CPUS = {
    "avx2": "haswell",
    "avx_vnni": "alderlake",
    "avx512_vnni": "icelake-server",
    "avx_vnni16": "alderlake",
    "avx512_vnni16": "icelake-server",
    "avx512": "skylake-avx512",
}
TRIPLE = "x86_64-unknown-linux-gnu"

FOURS = """
define {result} @{name}({result} %sum, {given} %w, {given} %x) {{
  %w32 = zext {given} %w to {wide}
  %x32 = sext {given} %x to {wide}
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
"""The definition of `vpdpbusd`."""

PAIRS = """
define {result} @{name}({result} %sum, {given} %w, {given} %x) {{
  %w32 = sext {given} %w to {wide}
  %x32 = sext {given} %x to {wide}
  %products = mul {wide} %w32, %x32
  %p0 = shufflevector {wide} %products, {wide} undef, {indices} {first}
  %p1 = shufflevector {wide} %products, {wide} undef, {indices} {second}
  %s0 = add {result} %p0, %p1
  %s1 = add {result} %s0, %sum
  ret {result} %s1
}}
"""
"""The definition of `vpdpwssd`."""


@pytest.fixture(scope="module", autouse=True)
def targets() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def code_of(kind: ProductKind, num_rows: int) -> str:
    """Returns LLVM's code of a function `block` that multiplies a block."""
    module = ir.Module("products")
    module.triple = TRIPLE
    arguments = [ir.IntType(64)] * 10
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "block")
    builder = ir.IRBuilder(function.append_basic_block())
    emit_block(builder, kind, num_rows, BlockArguments(*function.args))
    builder.ret_void()
    return str(module)


INSTRUCTIONS = {
    ("avx2", 16): r"vpmaddwd\s.*%ymm",
    ("avx512", 16): r"vpmaddwd\s.*%zmm",
    ("avx_vnni", 8): r"\{vex\}\s+vpdpbusd\s.*%ymm",
    ("avx_vnni", 16): r"(\{vex\}\s+vpdpwss|vpmaddw)d\s.*%ymm",
    ("avx512_vnni", 8): r"vpdpbusd\s.*%zmm",
    ("avx512_vnni", 16): r"vp(dpwss|maddw)d\s.*%zmm",
}
"""The instructions of products, by the CPU's instruction set and the bits of activations."""


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_other_cpus_are_compiled_for(instructions: str) -> None:
    target = binding.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=CPUS[instructions], opt=3)
    for form, num_rows in product(FORMS, (1, 4)):
        kind = ProductKind(instructions, *form)
        instruction = INSTRUCTIONS[instructions.removesuffix("16"), kind.activation_bits]
        module = binding.parse_assembly(code_of(kind, num_rows))
        module.verify()
        assembly = machine.emit_assembly(module)
        assert len(re.findall(instruction, assembly)) >= 4 * num_rows
        assert "call" not in assembly


def with_plain_dot(code: str, lanes: int) -> str:
    """Replaces a dot product instruction, which this machine may lack, with its definition."""
    names = set(re.findall(r'@"?(llvm\.x86\.avx512\.vpdp\w+\.\d+)"?', code))
    if not names:  # pairs are added by AVX2's instructions
        return code
    (name,) = names
    template, together = (FOURS, 4) if "vpdpbusd" in name else (PAIRS, 2)
    code = re.sub(rf'declare [^\n]*"{re.escape(name)}"[^\n]*\n', "", code)
    code = code.replace(name, "plain_dot")
    every = [
        "<" + ", ".join(f"i32 {together * lane + first}" for lane in range(lanes)) + ">"
        for first in range(together)
    ]
    return code + template.format(
        name="plain_dot",
        result=f"<{lanes} x i32>",
        given=f"<{together * lanes} x i{32 // together}>",
        wide=f"<{together * lanes} x i32>",
        indices=f"<{lanes} x i32>",
        **dict(zip(("first", "second", "third", "fourth"), every, strict=False)),
    )


def multiplied(
    engine: binding.ExecutionEngine, matrix: PackedMatrix, integers: Floats, scales: Floats
) -> Floats:
    """Returns the products of a matrix with activations, computed by a function `block`."""
    kind, num_rows, num_groups = matrix.kind, *scales.shape
    packed = integers.astype(np.int16 if kind.activation_bits == 16 else np.int8)
    sums = integers.reshape(num_rows, num_groups, -1).sum(-1).astype(np.int32)
    width = matrix.num_blocks * kind.num_lanes
    found = np.full((num_rows, width), np.nan, np.float32)
    address = engine.get_function_address("block")
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)(address)
    for block in range(matrix.num_blocks):
        function(
            matrix.data.ctypes.data + block * kind.block_size(num_groups, matrix.columns),
            packed.ctypes.data,
            sums.ctypes.data,
            scales.ctypes.data,
            found[:, block * kind.num_lanes :].ctypes.data,
            num_groups,
            matrix.columns // kind.columns_of_unit,
            0,
            64,
            width,
        )
    return found[:, : matrix.num_rows]


@pytest.mark.parametrize("instructions", [one for one in INSTRUCTION_SETS if "vnni" in one])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_the_layout_for_vnni_fits_the_code(
    kernels: Kernels, instructions: str, num_rows: int
) -> None:
    target = binding.Target.from_triple(TRIPLE)
    engines = {}
    for form in FORMS:
        kind = ProductKind(instructions, *form)
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
        largest = 2 ** (kind.activation_bits - 1) - 1
        integers, scales = quantized(rows, matrix.columns, largest)
        found = multiplied(engines[kind], matrix, integers, scales.astype(np.float32))
        seen = integers * scales.astype(np.float32).repeat(matrix.columns, -1)
        matrix_values = dense(weights).astype(np.float64)
        size = np.abs(seen) @ np.abs(matrix_values).T
        assert np.all(np.abs(found - seen @ matrix_values.T) <= 1e-5 * size + 1e-6), weights
        if kind.weight_bits == 6 and not kind.has_zero_points:  # otherwise sums are inexact in f32
            eight = replace(kind, weight_bits=8)
            matrix = pack([weights], eight, kernels)
            same = multiplied(engines[eight], matrix, integers, scales.astype(np.float32))
            assert np.array_equal(found, same), weights


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("sse4_2 avx avx2 fma f16c", "avx2"),
        ("avx avx2 fma f16c avx512f avx512bw avx512vl", "avx512"),
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
