"""Tests of the parts of graphs that the kernels compute."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from bench.random_models.weights import QUANTIZATIONS, QuantizedMatrix
from fastovms.engine.kernels.assembler import WeightStore, assemble, packed_bytes
from fastovms.engine.kernels.compiler import Kernels
from fastovms.engine.kernels.instructions import Field, Opcode
from fastovms.engine.kernels.operation import use_kernels
from fastovms.engine.kernels.segments import find_segments
from tests.engine.kernels.conftest import instructions_here

WIDTH = 64
MAX_ROWS = 4
Node = Any


def linear(node: Node, rows: int = WIDTH, name: str = "a", weights: str = "int8") -> Node:
    columns = node.get_output_partial_shape(0)[-1].get_length()
    rng = np.random.default_rng(len(name) + rows)
    matrix = QuantizedMatrix.random(rng, rows, columns, 1 / 8, QUANTIZATIONS[weights])
    matmul = ops.matmul(node, matrix.node(name), False, True)
    matmul.set_friendly_name(name)
    return matmul


def normalized(node: Node, *, power: float = 0.5) -> Node:
    mean = ops.reduce_mean(ops.power(node, np.float32(2)), np.array([-1]), keep_dims=True)
    root = ops.add(mean, np.float32(1e-5))
    if power == 0.5:
        inverse = ops.divide(np.float32(1), ops.sqrt(root))
    else:
        inverse = ops.power(root, np.float32(power))
    scaled = ops.multiply(node, inverse)
    return ops.multiply(ops.constant(np.linspace(0.5, 2, WIDTH, dtype=np.float32)), scaled)


def residual_layer(x: Node) -> Node:
    hidden = normalized(ops.add(x, linear(x, name="out")))
    gate, up = linear(hidden, 96, "gate"), linear(hidden, 96, "up")
    return linear(ops.multiply(ops.swish(gate), up), name="down")


def split_layer(x: Node) -> Node:
    both = linear(normalized(x, power=-0.5), 192, "gate_up")
    parts = ops.variadic_split(both, np.int64(-1), np.array([96, 96]))
    activated = ops.gelu(parts.output(0), "tanh")
    return linear(ops.multiply(activated, parts.output(1)), name="down")


def with_openvino_between(x: Node) -> Node:
    return ops.add(linear(ops.tanh(linear(x, name="first")), name="second"), x)


def biased(x: Node) -> Node:
    row = np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, 1, WIDTH)
    return ops.gelu(ops.add(linear(x), ops.constant(row)), "erf")


def odd_rows(x: Node) -> Node:
    return linear(x, 61, "odd")


def two_outputs(x: Node) -> Node:
    shared = linear(x, name="shared")
    return ops.concat([ops.tanh(shared), ops.tanh(linear(shared, name="after"))], -1)


def mixed(x: Node) -> Node:
    four, eight = linear(x, name="four", weights="int4-sym-64"), linear(x, name="eight")
    return linear(ops.add(four, eight), name="after", weights="int4-sym-64")


def split_for_openvino(x: Node) -> Node:
    parts = ops.variadic_split(linear(x, 128, "qkv"), np.int64(-1), np.array([64, 64]))
    return ops.concat([ops.tanh(parts.output(0)), ops.sin(parts.output(1))], -1)


def graph(make: Any) -> ov.Model:
    x = ops.parameter([-1, 1, WIDTH], np.float32)
    return ov.Model([ops.result(make(x))], [x], "graph")


def computed(model: ov.Model, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
    return request.infer([rows])[0].copy()


@pytest.mark.parametrize(
    ("make", "num_segments"),
    [
        (residual_layer, 1),
        (split_layer, 1),
        (with_openvino_between, 2),
        (biased, 1),
        (odd_rows, 1),
        (two_outputs, 1),
        (mixed, 1),
        (split_for_openvino, 1),
    ],
)
@pytest.mark.parametrize("instructions", instructions_here())
def test_graphs_compute_the_same_with_kernels(
    kernels_for: Callable[[str], Kernels], instructions: str, make: Any, num_segments: int
) -> None:
    model, store = graph(make), WeightStore(kernels_for(instructions))
    rewritten = use_kernels(model.clone(), store, max_rows=MAX_ROWS)
    assert rewritten is not None
    assert len(rewritten.operations) == num_segments
    kinds = [node.get_type_name() for node in rewritten.model.get_ordered_ops()]
    assert "MatMul" not in kinds
    exactness = 1e-3 if all(one.kind.activation_bits == 16 for one in store.matrices) else 5e-2
    for num_rows in (1, 3, 4, 2):
        rows = np.random.default_rng(num_rows).standard_normal((num_rows, 1, WIDTH))
        rows = rows.astype(np.float32)
        expected, found = computed(model, rows), computed(rewritten.model, rows)
        atol = exactness * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def test_products_of_the_same_rows_are_one(kernels: Kernels) -> None:
    (segment,) = find_segments(graph(residual_layer), "avx2")
    program = assemble(segment, WeightStore(kernels))
    opcodes = program.instructions[:, Field.OPCODE].tolist()
    assert opcodes.count(Opcode.PRODUCT) == 3
    assert opcodes.count(Opcode.QUANTIZE) == 3


def test_activations_have_the_bits_that_weights_need(kernels: Kernels) -> None:
    (segment,) = find_segments(graph(mixed), "avx512_vnni16")
    program = assemble(segment, WeightStore(replace(kernels, instructions="avx512_vnni16")))
    instructions = program.instructions
    is_quantized = instructions[:, Field.OPCODE] == Opcode.QUANTIZE
    assert instructions[is_quantized, Field.P1].tolist() == [8, 16, 8]


def test_programs_share_packed_weights(kernels: Kernels) -> None:
    store = WeightStore(kernels)
    for _ in range(2):
        assert use_kernels(graph(residual_layer), store, max_rows=1) is not None
    (segment,) = find_segments(graph(residual_layer), "avx2")
    assert store.num_bytes == packed_bytes(segment)


def test_models_that_are_not_used_any_more_free_packed_weights(kernels: Kernels) -> None:
    store = WeightStore(kernels)
    rewritten = use_kernels(graph(residual_layer), store, max_rows=MAX_ROWS)
    assert rewritten is not None
    computed(rewritten.model, np.zeros((1, 1, WIDTH), np.float32))  # a compiled model has clones
    packed = [weakref.ref(matrix.data) for matrix in store.matrices]
    del store, rewritten
    gc.collect()
    assert packed
    assert not any(data() is not None for data in packed)


@pytest.mark.parametrize(
    "make",
    [
        ops.tanh,
        lambda x: ops.matmul(x, np.ones((8, WIDTH), np.float32), False, True),
        lambda x: ops.matmul(x, np.ones((WIDTH, 8), np.float32), False, False),
    ],
)
def test_graphs_without_compressed_weights_have_no_segments(make: Any) -> None:
    assert find_segments(graph(make), "avx2") == []
