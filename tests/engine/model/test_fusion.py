"""Tests that one projection replaces three and computes the same."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES, Shape
from bench.random_models.weights import WeightFormat
from fastovms.engine.model import compilation
from fastovms.engine.model.compilation import compile_variants, load_model
from fastovms.engine.model.fusion import fuse_projections
from fastovms.engine.model.model import Precisions
from fastovms.engine.model.paging import read_paged_graph
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from tests.engine.conftest import TINY_SHAPES

Node = Any
TINY = SHAPES["tiny"]


class BiasOfQueries(LlamaGraph):
    def _heads(self, hidden: Node, num_heads: int, std: float, name: str) -> Node:
        has_bias = name.endswith("q_proj")
        self._shape = replace(self._shape, attention_bias=has_bias)
        return super()._heads(hidden, num_heads, std, name)


class ValuesOfOtherInputs(LlamaGraph):
    def _heads(self, hidden: Node, num_heads: int, std: float, name: str) -> Node:
        if name.endswith("v_proj"):
            hidden = ops.tanh(hidden)
        return super()._heads(hidden, num_heads, std, name)


class ValuesInOtherFormat(LlamaGraph):
    def _heads(self, hidden: Node, num_heads: int, std: float, name: str) -> Node:
        self._format = WeightFormat("int4" if name.endswith("v_proj") else "int8")
        return super()._heads(hidden, num_heads, std, name)


class AdapterOfQueries(LlamaGraph):
    def _linear(self, inputs: Node, rows: int, columns: int, std: float, name: str) -> Node:
        projected = super()._linear(inputs, rows, columns, std, name)
        if not name.endswith("q_proj"):
            return projected
        low = super()._linear(inputs, 32, columns, std, f"{name}.lora_A")
        return ops.add(projected, super()._linear(low, rows, 32, std, f"{name}.lora_B"))


class KeysAreValues(LlamaGraph):
    """Gemma's layers of full attention: one projection is used twice."""

    def _heads(self, hidden: Node, num_heads: int, std: float, name: str) -> Node:
        if name.endswith("v_proj"):
            return self._keys
        self._keys = super()._heads(hidden, num_heads, std, name)
        return self._keys


class LayersShareWeights(LlamaGraph):
    def build(self) -> ov.Model:
        self._matrices: dict[str, Node] = {}
        return super().build()

    def _linear(self, inputs: Node, rows: int, columns: int, std: float, name: str) -> Node:
        name = name.rpartition(".")[2]
        if name not in self._matrices:
            weights = self._format.node(self._matrix(rows, columns, std), f"{name}.weight")
            self._matrices[name] = weights
        return ops.matmul(inputs, self._matrices[name], False, True)


class WeightsAreScaledByColumn(LlamaGraph):
    def _linear(self, inputs: Node, rows: int, columns: int, std: float, name: str) -> Node:
        weights = self._format.node(self._matrix(rows, columns, std), f"{name}.weight")
        scale = self._rng.uniform(0.5, 2, (1, columns)).astype(np.float32)
        return ops.matmul(inputs, ops.multiply(weights, ops.constant(scale)), False, True)


class WeightsOfRankThree(LlamaGraph):
    """All weights are equal and have rank three."""

    def _linear(self, inputs: Node, rows: int, columns: int, std: float, name: str) -> Node:
        weights = np.full((1, rows, columns), 0.125, np.float32)
        return ops.matmul(inputs, ops.constant(weights), False, True)


def paged(graph: LlamaGraph, directory: Path) -> ov.Model:
    ov.save_model(graph.build(), directory / "openvino_model.xml", compress_to_fp16=False)
    return read_paged_graph(ov.Core(), directory).model


def num_attentions(name: str) -> int:
    """Returns the number of layers with attention."""
    return SHAPES[name].num_hidden_layers - len(SHAPES[name].convolutions)


def num_projections(model: ov.Model) -> int:
    """Returns the number of products with the output of a layer's norm."""
    return sum(map(is_product, model.get_ordered_ops()))


def is_product(node: Any) -> bool:
    return bool(node.get_type_name() == "MatMul")


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_projections_of_all_layers_are_fused(tiny_models: dict[str, Path], name: str) -> None:
    model = read_paged_graph(ov.Core(), tiny_models[name]).model
    before = num_projections(model)
    num_layers = num_attentions(name)
    products = {n.get_friendly_name() for n in model.get_ordered_ops() if is_product(n)}
    fused = fuse_projections(model)
    assert [len(names) for names in fused] == num_layers * [3]
    assert {name for names in fused for name in names} <= products
    kept = {n.get_friendly_name() for n in model.get_ordered_ops() if is_product(n)}
    assert products - kept == {name for names in fused for name in names[1:]}
    assert num_projections(model) == before - 2 * num_layers
    assert fuse_projections(model) == [], "they are one already"


@pytest.mark.parametrize(
    "graph",
    [
        BiasOfQueries,
        ValuesOfOtherInputs,
        ValuesInOtherFormat,
        AdapterOfQueries,
        KeysAreValues,
        LayersShareWeights,
        WeightsAreScaledByColumn,
        WeightsOfRankThree,
    ],
)
def test_layers_whose_projections_are_not_alike_stay(
    graph: type[LlamaGraph], tmp_path: Path
) -> None:
    shape = replace(TINY, num_key_value_heads=TINY.num_attention_heads)
    model = paged(graph(shape, 300, seed=0), tmp_path)
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    assert fuse_projections(model) == []
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == before


def test_weights_stay_as_compressed_as_they_were(tiny_models: dict[str, Path]) -> None:
    for name, dtype in (("tiny", "u8"), ("tiny-qwen2", "u4"), ("tiny-qwen3", "f16")):
        model = read_paged_graph(ov.Core(), tiny_models[name]).model
        fuse_projections(model)
        rows = num_rows(SHAPES[name])
        stacked = [
            str(node.get_element_type().get_type_name())
            for node in model.get_ordered_ops()
            if node.get_type_name() == "Constant" and list(node.get_output_shape(0))[:1] == [rows]
        ]
        assert dtype in stacked
        assert "f32" not in stacked


def num_rows(shape: Shape) -> int:
    return (shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim


STEPS = (  # past_lens, tokens of each sequence
    ([0, 0], [7, 40]),
    ([7, 40], [1, 1]),
    ([8, 41], [1, 5]),
)


def step(past_lens: list[int], num_tokens: list[int], block_size: int) -> StepInputs:
    layout = StepLayout(block_size)
    token_ids = array("q", range(20, 20 + 64))
    for i, (start, num) in enumerate(zip(past_lens, num_tokens, strict=True)):
        layout.add(token_ids, start, start + num, array("i", (2 * i, 2 * i + 1)))
    return layout.finish(array("q", range(sum(num_tokens))))


def logits(model_dir: Path) -> list[NDArray[np.float32]]:
    model = load_model(model_dir)
    model.allocate_cache(4)
    return [model.infer(step(*lengths, model.block_size)).copy() for lengths in STEPS]


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_fused_projections_compute_the_same_logits(
    tiny_models: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused: list[int] = []
    monkeypatch.setattr(
        compilation, "fuse_projections", lambda m: fused.append(len(fuse_projections(m)))
    )
    with_one = logits(tiny_models[name])
    monkeypatch.setattr(compilation, "fuse_projections", lambda m: None)
    with_three = logits(tiny_models[name])
    assert fused == [num_attentions(name)]
    for one, three in zip(with_one, with_three, strict=True):
        np.testing.assert_allclose(one, three, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("amx", "large", "small", "expected"),
    [
        (True, "bf16", None, 0),
        (True, "bf16", "f32", 1),
        (True, "f32", None, 1),
        (False, "bf16", None, 1),
        (False, "bf16", "f32", 2),
    ],
)
def test_projections_that_openvino_fuses_are_not_fused(
    monkeypatch: pytest.MonkeyPatch, amx: bool, large: str, small: str | None, expected: int
) -> None:
    fused: list[object] = []
    monkeypatch.setattr(compilation, "has_amx", lambda: amx)
    monkeypatch.setattr(compilation, "fuse_projections", fused.append)
    monkeypatch.setattr(compilation, "_with_bf16_logits", lambda model: model)
    hint = "INFERENCE_PRECISION_HINT"
    precisions = Precisions("", {hint: large}, {hint: small} if small else None)
    core, model = Mock(), Mock()
    core.compile_model.return_value.inputs = []
    compile_variants(core, model, "CPU", precisions)
    assert len(fused) == expected
    assert model not in fused, "others may still need it as it is"
