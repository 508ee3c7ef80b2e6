"""Instructions of programs, by NumPy's results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.engine.kernels.chunk_products import UNIT
from fastovms.engine.kernels.compiler import Kernels
from fastovms.engine.kernels.experts import choice_size
from fastovms.engine.kernels.instructions import (
    MAX_FEW_ROWS,
    NUM_FIELDS,
    Field,
    Opcode,
    StepField,
)
from fastovms.engine.kernels.matrices import PackedMatrix, pack, packed_kind
from fastovms.engine.kernels.routers import Router
from tests.engine.kernels.conftest import instructions_here
from tests.engine.kernels.matrix_cases import (
    Floats,
    activations,
    all_weights,
    dense,
    quantized,
    random_weights,
)

NUM_ROWS = (1, 2, 3, 4, 5, 7, 8, 11, 16)
WIDTH = 70


def instruction(opcode: Opcode, width: int, *parameters: int) -> NDArray[np.int64]:
    """Returns an instruction that reads buffers 0 and 1, and writes buffer 2."""
    row = np.zeros(NUM_FIELDS, np.int64)
    row[[Field.OPCODE, Field.B, Field.OUT, Field.WIDTH]] = opcode, 1, 2, width
    row[Field.P0 : Field.P0 + len(parameters)] = parameters
    row[Field.HEADS] = 1
    return row


def run(
    kernels: Kernels,
    program: list[NDArray[np.int64]],
    buffers: list[Floats],
    step: NDArray[np.int64] | None = None,
) -> None:
    """Runs a program with buffers [rows, columns]."""
    num_rows, width = len(buffers[0]), max(one.shape[1] for one in buffers)
    integers = np.zeros((num_rows, width), np.int16)
    sums = np.zeros((num_rows, width), np.int32)
    scales = np.zeros((num_rows, width), np.float32)
    agreement = np.zeros(40, np.int64)
    addresses = [array.ctypes.data for array in (integers, sums, scales)]
    aligned = agreement.ctypes.data + -agreement.ctypes.data % 64
    kernels.run(
        np.array(program),
        np.array([(one.ctypes.data, one.shape[1]) for one in buffers], np.int64),
        num_rows,
        np.array([*addresses, aligned], np.int64),
        kernels.product,
        np.zeros(1, np.int64) if step is None else step,
        kernels.num_threads,
    )


def product_of(kernels: Kernels, matrix: PackedMatrix, rows: Floats, num_parts: int) -> Floats:
    num_groups = matrix.num_columns // matrix.columns
    result = np.full((len(rows), matrix.num_blocks * matrix.kind.num_lanes), np.nan, np.float32)
    program = [
        instruction(
            Opcode.QUANTIZE,
            matrix.num_columns,
            matrix.columns,
            matrix.kind.activation_bits,
            0,
            matrix.kind.has_chunk_form,
        ),
        instruction(
            Opcode.PRODUCT,
            result.shape[1],
            matrix.data.ctypes.data,
            matrix.num_blocks,
            num_groups,
            matrix.columns // matrix.kind.columns_of_unit,
            matrix.kind.weight_bits,
            matrix.kind.form,
            num_parts,
            matrix.kind.has_chunk_form,
        ),
    ]
    step = np.zeros(StepField.CACHES, np.int64)
    step[StepField.CHUNK_PRODUCT] = kernels.chunk_product
    run(kernels, program, [rows, rows, result], step)
    return result[:, : matrix.num_rows]


@pytest.mark.parametrize("instructions", instructions_here())
def test_products_are_those_of_the_decompressed_weights(
    kernels_for: Callable[[str], Kernels], instructions: str
) -> None:
    kernels = kernels_for(instructions)
    num_cases = 0
    for weights in all_weights():
        kind = packed_kind(weights, instructions)
        assert kind is not None
        matrix = pack([weights], kind, kernels)
        matrix_values = dense(weights).astype(np.float64)
        for num_rows in NUM_ROWS:
            rows = activations(num_rows, weights.num_columns)
            found = product_of(kernels, matrix, rows, 1 + num_rows % 3)
            largest = 2 ** (kind.activation_bits - 1) - 1
            integers, scales = quantized(rows, matrix.columns, largest)
            seen = integers * scales.repeat(matrix.columns, -1)
            # Activations close to the middle of two integers may be rounded to either.
            size = np.abs(seen) @ np.abs(matrix_values).T
            assert np.all(np.abs(found - seen @ matrix_values.T) <= 1e-4 * size + 1e-6), weights
            num_cases += 1
    assert num_cases == 150 * len(NUM_ROWS)


@pytest.mark.parametrize("instructions", instructions_here())
def test_products_of_chunks_are_those_of_activations_of_8_bits(
    kernels_for: Callable[[str], Kernels], instructions: str
) -> None:
    kernels = kernels_for(instructions)
    if not kernels.chunk_product:
        pytest.skip("their activations always have 8 bits, or those of chunks have 16")
    num_rows = MAX_FEW_ROWS + 5
    for weights in all_weights():
        kind = packed_kind(weights, instructions)
        assert kind is not None
        if not kind.has_chunk_form:
            continue
        matrix = pack([weights], kind, kernels)
        rows = activations(num_rows, weights.num_columns)
        found = product_of(kernels, matrix, rows, 3)
        integers, scales = quantized(rows, UNIT, 127)
        seen = integers * scales.repeat(UNIT, -1)
        values = dense(weights).astype(np.float64)
        # An activation that is nearly halfway between two integers may become either.
        other = np.abs(rows).max() / 127 * np.abs(values).max(-1)
        size = other + 1e-5 * np.abs(seen).sum(-1, keepdims=True)
        assert np.all(np.abs(found - seen @ values.T) <= size), weights


def test_products_of_6_bits_are_those_of_8(kernels: Kernels) -> None:
    num_cases = 0
    for weights in all_weights():
        kind = packed_kind(weights, "avx2")
        assert kind is not None
        if kind.weight_bits != 6 or kind.has_zero_points:  # sums with these are inexact in f32
            continue
        matrices = [pack([weights], replace(kind, weight_bits=bits), kernels) for bits in (6, 8)]
        for num_rows in NUM_ROWS:
            rows = activations(num_rows, weights.num_columns)
            six, eight = (product_of(kernels, matrix, rows, 2) for matrix in matrices)
            assert np.array_equal(six, eight), weights
            num_cases += 1
    assert num_cases == 9 * len(NUM_ROWS)


def test_matrices_are_stacked_in_order(kernels: Kernels) -> None:
    first = random_weights(4, is_signed=True, zeros="none", shape=(16, 256, 2))
    second = random_weights(4, is_signed=True, zeros="none", shape=(24, 256, 2))
    kind = packed_kind(first, "avx2")
    assert kind is not None
    rows = activations(2, 256)
    matrix = pack([first, second], kind, kernels)
    parts = [product_of(kernels, pack([one], kind, kernels), rows, 1) for one in (first, second)]
    assert np.array_equal(product_of(kernels, matrix, rows, 4), np.concatenate(parts, 1))


def erf(x: Floats) -> Floats:
    return np.vectorize(math.erf)(x)


X = np.linspace(-12, 12, 3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)
Y = np.cos(X)
ROW = np.linspace(1, 2, WIDTH, dtype=np.float32)


@pytest.mark.parametrize(
    ("opcode", "parameters", "expected"),
    [
        (Opcode.ADD, (), X + Y),
        (Opcode.MULTIPLY, (), X * Y),
        (Opcode.ADD_CONSTANT, (ROW.ctypes.data,), X + ROW),
        (Opcode.MULTIPLY_CONSTANT, (ROW.ctypes.data,), X * ROW),
        (
            Opcode.NORMALIZE,
            (ROW.ctypes.data, int(np.float32(0.5).view(np.int32))),
            X / np.sqrt(np.square(X).mean(-1, keepdims=True) + 0.5) * ROW,
        ),
        (Opcode.SWISH, (), X / (1 + np.exp(-X))),
        (
            Opcode.GELU_TANH,
            (),
            X / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
        ),
        (Opcode.GELU_ERF, (), X / 2 * (1 + erf(X / np.sqrt(2)))),
        (Opcode.COPY, (), X),
        (Opcode.SIGMOID, (), 1 / (1 + np.exp(-X))),
        (Opcode.SCALE, (), X * Y[:, :1]),
    ],
)
def test_instructions_compute_rows(
    kernels: Kernels, opcode: Opcode, parameters: tuple[int, ...], expected: Floats
) -> None:
    result = np.full_like(X, np.nan)
    run(kernels, [instruction(opcode, WIDTH, *parameters)], [X, Y, result])
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_parts_of_rows_are_read_and_written(kernels: Kernels) -> None:
    result = np.zeros_like(X)
    row = instruction(Opcode.ADD, 10)
    row[[Field.A_START, Field.B_START, Field.OUT_START]] = 5, 20, 60
    run(kernels, [row], [X, Y, result])
    expected = np.zeros_like(X)
    expected[:, 60:] = X[:, 5:15] + Y[:, 20:30]
    assert np.array_equal(result, expected)


NUM_EXPERTS, INNER = 6, 64


BIAS = np.array([0.3, -0.2, 0.1, 0.0, 0.2, -0.3], np.float32)
SOFTMAX = Router(NUM_EXPERTS, 2, is_sigmoid=False, is_normalized=True)
ROUTERS = {
    "one": replace(SOFTMAX, num_chosen=1, is_normalized=False),
    "normalized": SOFTMAX,
    "all": replace(SOFTMAX, num_chosen=6),
    "sigmoid": replace(SOFTMAX, is_sigmoid=True, epsilon=0.25, scale=2.5),
    "bias": replace(SOFTMAX, is_sigmoid=True, bias=BIAS),
    "groups": replace(SOFTMAX, is_sigmoid=True, num_groups=3, num_chosen_groups=2),
    "groups, bias": replace(SOFTMAX, bias=BIAS, num_groups=2, num_chosen_groups=1),
}


def choosing(router: Router) -> NDArray[np.int64]:
    row = instruction(Opcode.CHOOSE, NUM_EXPERTS, NUM_EXPERTS, router.num_chosen)
    row[[Field.P2, Field.P3]] = router.is_sigmoid, router.is_normalized
    row[Field.P4] = 0 if router.bias is None else router.bias.ctypes.data
    row[[Field.P5, Field.P6]] = np.array([router.scale, router.epsilon], "f").view(np.int32)
    row[[Field.A_STRIDE, Field.B_STRIDE]] = router.num_groups, router.num_chosen_groups
    return row


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("instructions", instructions_here())
def test_chosen_experts_alone_are_multiplied_and_added(
    kernels_for: Callable[[str], Kernels], instructions: str, name: str, num_parts: int
) -> None:
    kernels, router = kernels_for(instructions), ROUTERS[name]
    num_chosen = router.num_chosen
    first = random_weights(4, is_signed=True, zeros="none", shape=(INNER, INNER, 2))
    experts = [
        replace(first, integers=np.roll(first.integers, 7 * n), scales=first.scales * 2.0**-n)
        for n in range(NUM_EXPERTS)
    ]
    kind = packed_kind(experts[0], instructions)
    assert kind is not None
    matrix = pack(experts, kind, kernels)
    matrices = [dense(weights) for weights in experts]
    num_groups = INNER // matrix.columns
    for num_rows in (1, 2, 5, 32):
        rng = np.random.default_rng(num_rows)
        rows = activations(num_rows, INNER)
        scores = rng.normal(size=(num_rows, NUM_EXPERTS)).astype(np.float32)
        if router.bias is None and router.num_groups == 1:
            scores = np.rint(scores)  # some are equal
        choice = np.zeros((num_rows, choice_size(NUM_EXPERTS, num_chosen)), np.float32)
        pairs = np.zeros((num_rows, num_chosen * INNER), np.float32)
        found = np.full((num_rows, INNER), np.nan, np.float32)
        product = instruction(
            Opcode.EXPERTS,
            INNER,
            matrix.data.ctypes.data,
            matrix.num_blocks // NUM_EXPERTS,
            num_groups,
            matrix.columns // kind.columns_of_unit,
            kind.weight_bits,
            kind.form,
            num_parts,
            INNER * kind.activation_bits // 8,
        )
        product[[Field.HEADS, Field.A_STRIDE]] = num_chosen, matrix.data.nbytes // NUM_EXPERTS
        product[[Field.B_STRIDE, Field.OUT_STRIDE]] = NUM_EXPERTS, INNER
        program = [
            choosing(router),
            instruction(Opcode.QUANTIZE, INNER, matrix.columns, kind.activation_bits, NUM_EXPERTS),
            product,
            instruction(Opcode.COMBINE, INNER, NUM_EXPERTS, num_chosen),
        ]
        places = [(1, 0, 2), (0, 2, 3), (0, 2, 3), (3, 2, 4)]
        for row, place in zip(program, places, strict=True):
            row[[Field.A, Field.C, Field.OUT]] = place
        largest = 2 ** (kind.activation_bits - 1) - 1
        integers, scales = quantized(rows, matrix.columns, largest)
        seen = integers * scales.repeat(matrix.columns, -1)
        expected = np.zeros((num_rows, INNER))
        factors = router.factors(scores)
        for expert, weights in enumerate(matrices):
            expected += factors[:, expert, None] * (seen @ weights.T)
        run(kernels, program, [rows, scores, choice, pairs, found])
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
