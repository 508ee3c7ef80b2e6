"""Tests of `fastovms/parts/comparison/graph_comparison.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.backends.model_files import MAX_DIFFERENCE
from fastovms.engine.model.compilation import ExportedModel
from fastovms.engine.model.long_rope import TOKEN_SEQUENCE_LENS
from fastovms.engine.model.model import PagedGraph
from fastovms.parts.comparison.graph_comparison import (
    UnknownInput,
    compute_plain,
    largest_difference,
)
from fastovms.parts.comparison.layer_cut import cut_layers

# Log probabilities of an exported graph.


TEXT = {"input_ids": np.array([[3, 1, 4, 1, 5]])}


def tiny() -> ov.Model:
    return LlamaGraph(SHAPES["tiny"], 300, seed=0).build()


def test_start_position_does_not_change_logits_with_relative_positions() -> None:
    first, second = compute_plain(ov.Core(), tiny(), TEXT, starts=(0, 7))
    assert first.shape == second.shape
    np.testing.assert_allclose(np.exp(first).sum(-1), 1, rtol=1e-4)
    np.testing.assert_allclose(first, second, atol=1e-3)


def test_unknown_input_of_a_graph_is_named() -> None:
    model = tiny()
    more = ops.parameter([1], np.float32, name="more")
    more.output(0).set_names({"more"})
    result = model.output("logits").get_node()
    result.input(0).replace_source_output(ops.add(result.input_value(0), more).output(0))
    model.add_parameters([more])
    with pytest.raises(UnknownInput, match=r"^more$"):
        compute_plain(ov.Core(), model, TEXT)


# Faults of a paged graph are found.


MODELS = Path(__file__).parents[2] / "models" / "architectures"
SCALE, WINDOW, SLOPES = 9, 10, 11
"""Inputs of a paged attention."""


def attention_with(index: int, value: Any, *layers: int) -> Callable[[PagedGraph], None]:
    """Changes the attention of the first layer, or of others."""

    def change(graph: PagedGraph) -> None:
        for layer in layers or (0,):
            (target,) = graph.model.input(f"key_cache.{layer}").get_target_inputs()
            constant = opset13.constant(np.array(value))
            target.get_node().input(index).replace_source_output(constant.output(0))

    return change


def short_factors_only(graph: PagedGraph) -> None:
    parameter = graph.model.input(TOKEN_SEQUENCE_LENS)
    nothing = opset13.multiply(parameter, opset13.constant(np.int64(0)))
    for target in parameter.get_target_inputs():
        if target.get_node().get_instance_id() != nothing.get_instance_id():
            target.replace_source_output(nothing.output(0))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpt_neo-window", attention_with(WINDOW, np.int32(8))),
        ("phi3-longrope", attention_with(SCALE, np.float32(0.5))),
        ("mpt-ALiBi", attention_with(SLOPES, np.zeros(4, np.float32))),
        ("phi3-longrope", short_factors_only),
    ],
)
def test_another_attention_makes_a_difference(
    name: str, change: Callable[[PagedGraph], None]
) -> None:
    files = ExportedModel(MODELS / name, max_model_len=160)
    change(files.graph)
    files.graph.model.validate_nodes_and_infer_types()
    assert largest_difference(files) > 2 * MAX_DIFFERENCE


# One layer of each kind is sufficient if they agree.


NUM_LAYERS = 6


def save_deep(directory: Path) -> Path:
    shape = replace(SHAPES["tiny"], num_hidden_layers=NUM_LAYERS)
    ov.save_model(LlamaGraph(shape, 300, seed=0).build(), directory / "openvino_model.xml")
    return directory


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        (lambda graph: None, [0, 5]),
        (attention_with(WINDOW, np.int32(8), *range(NUM_LAYERS)), [0, 5]),
        (attention_with(WINDOW, np.int32(8), 3), [0, 3, 5]),
        (attention_with(SCALE, np.float32(0.1), 1, 4), [0, 1, 5]),
        (attention_with(SCALE, np.float32(0.1), 5), [0, 5]),
    ],
)
def test_a_layer_of_each_kind_is_left(tmp_path, change, layers) -> None:
    files = ExportedModel(save_deep(tmp_path), max_model_len=160)
    change(files.graph)
    plain = ov.Core().read_model(tmp_path / "openvino_model.xml")
    assert cut_layers(plain, files.graph.model)
    names = {port.get_any_name() for port in files.graph.model.inputs}
    assert {name for name in names if "cache." in name} == {
        f"{kind}_cache.{layer}" for kind in ("key", "value") for layer in layers
    }
    assert len(plain.get_sinks()) == 2 * len(layers)


def test_correct_graph_is_compared_by_one_layer_of_each_kind(tmp_path, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    files = ExportedModel(save_deep(tmp_path), max_model_len=160)
    assert largest_difference(files) < MAX_DIFFERENCE / 100
    assert "one layer of each kind" not in caplog.text


@pytest.mark.nightly(but=("9-value2",))
@pytest.mark.parametrize(
    ("index", "value", "layers"),
    [
        (WINDOW, np.int32(4), range(NUM_LAYERS)),
        (WINDOW, np.int32(4), [3]),
        (SCALE, np.float32(0.01), range(NUM_LAYERS)),
        (SCALE, np.float32(0.01), [NUM_LAYERS - 1]),
    ],
)
def test_fault_in_some_of_many_layers_is_found(tmp_path, index, value, layers) -> None:
    files = ExportedModel(save_deep(tmp_path), max_model_len=160)
    right = largest_difference(files)
    attention_with(index, value, *layers)(files.graph)
    files.graph.model.validate_nodes_and_infer_types()
    assert largest_difference(files) > 50 * right


def test_graph_without_separable_layers_is_compared_whole() -> None:
    plain = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    assert not cut_layers(plain, plain.clone())
    hidden = ops.parameter([1, 4], np.float32, name="input_ids")
    hidden.output(0).set_names({"input_ids"})
    logits = ops.result(ops.relu(hidden))
    logits.output(0).set_names({"logits"})
    other = ov.Model([logits], [hidden], "no layers")
    assert not cut_layers(other, other.clone())
    assert not cut_layers(plain, other)
