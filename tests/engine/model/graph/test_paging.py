"""Which models can be paged, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.model.graph.paging import (
    SAMPLED_TOKEN_INDICES,
    TransformedGraph,
    applies_sliding_window,
    read_paged_graph,
    read_transformed,
    reason_of,
)
from tests.engine.conftest import TINY_SHAPES
from tests.engine.model.graphs import hybrid_model, recurrent_model, with_output


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", "RuntimeError"),
        ("out of luck", "out of luck"),
        ("Exception from a.cpp:3:\nCheck failed at b.cpp:4:\nno such thing\n\n", "no such thing"),
        ("Check 'a >= b' failed at /home/x/src/c.cpp:15\n", "Check 'a >= b' failed"),
    ],
)
def test_what_is_wrong_without_a_trace(message: str, reason: str) -> None:
    assert reason_of(RuntimeError(message)) == reason


SLOPES = 11
"""The input of a paged attention that has its slopes."""

MODELS = Path(__file__).parents[3] / "models" / "architectures"


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_only_sampled_tokens_are_projected_by_a_head_of_any_kind(
    tiny_models: dict[str, Path], name: str
) -> None:
    model = read_paged_graph(ov.Core(), tiny_models[name]).model
    assert SAMPLED_TOKEN_INDICES in {port.get_any_name() for port in model.inputs}


@pytest.mark.parametrize("follow", ["soft cap", "bias and scale"])
def test_a_head_is_found_below_what_follows_it(follow: str, tmp_path: Path) -> None:
    model = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    logits = model.output("logits").get_node().input_value(0)
    if follow == "soft cap":
        logits = ops.multiply(
            ops.constant(np.float32(30)), ops.tanh(ops.divide(logits, np.float32(30)))
        )
    else:
        logits = ops.multiply(ops.add(ops.constant(np.float32([[[1]]])), logits), np.float32(0.5))
    model = ov.Model([with_output(logits)], model.get_sinks(), model.get_parameters(), "model")
    ov.save_model(model, tmp_path / "openvino_model.xml")
    paged = read_paged_graph(ov.Core(), tmp_path).model
    assert SAMPLED_TOKEN_INDICES in {port.get_any_name() for port in paged.inputs}


@pytest.mark.parametrize(("window", "expected"), [(None, False), (40, True)])
def test_a_sliding_window_is_recognised(window: int | None, expected: bool, tmp_path: Path) -> None:
    shape = replace(SHAPES["tiny"], sliding_window=window)
    ov.save_model(LlamaGraph(shape, 300, seed=0).build(), tmp_path / "openvino_model.xml")
    assert applies_sliding_window(read_paged_graph(ov.Core(), tmp_path).model) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("phi3-longrope", 64),
        ("llama4-attention-chunks", 24),
        ("gpt_neo-window", 24),
        ("mpt-ALiBi", 1),
        ("falcon-ALiBi", 1),
        ("bloom-ALiBi", None),
        ("mistral-window", None),
        ("gemma3", None),
        ("gpt2", None),
    ],
)
def test_what_the_transformation_alone_leaves_out(name: str, expected: int | None) -> None:
    graph = read_transformed(ov.Core(), MODELS / name / "openvino_model.xml", 160)
    exact = graph.max_exact_len
    assert (None if exact is None else exact.num_tokens) == expected


def test_of_a_model_that_is_not_transformed_nothing_is_known(tmp_path: Path) -> None:
    graph = tmp_path / "openvino_model.xml"
    assert read_transformed(ov.Core(), graph, 160) == TransformedGraph()
    ov.save_model(recurrent_model(), graph)
    assert read_transformed(ov.Core(), graph, 160) == TransformedGraph()


def test_state_beside_attention_is_noticed(tmp_path: Path) -> None:
    graph = tmp_path / "openvino_model.xml"
    ov.save_model(hybrid_model(), graph)
    assert read_transformed(ov.Core(), graph, 160) == TransformedGraph(has_other_state=True)


def with_shared_cache() -> ov.Model:
    """A model whose last layer takes keys and values of its first, as in Gemma 3n. The bias of the
    one between them grows with the position."""
    shape = replace(SHAPES["tiny"], num_hidden_layers=3)
    model = LlamaGraph(shape, 300, seed=0).build()
    nodes = model.get_ordered_ops()
    first, middle, last = (n for n in nodes if n.get_type_name() == "ScaledDotProductAttention")
    for index in (1, 2):
        last.input(index).replace_source_output(first.input_value(index))
    mask = middle.input_value(3)
    length = ops.gather(ops.shape_of(mask), np.int64(3), np.int64(0))
    keys = ops.convert(ops.range(np.int64(0), length, np.int64(1), "i64"), np.float32)
    middle.input(3).replace_source_output(ops.add(mask, keys).output(0))
    sinks = [sink for sink in model.get_sinks() if ".2." not in sink.get_variable_id()]
    return ov.Model(model.get_results(), sinks, model.get_parameters(), "model")


def test_layers_that_share_a_cache_keep_their_own_attention(tmp_path: Path) -> None:
    ov.save_model(with_shared_cache(), tmp_path / "openvino_model.xml")
    model = read_paged_graph(ov.Core(), tmp_path, 160).model
    found = [
        (node.input_value(3).get_any_name(), bool(node.input_value(SLOPES).get_shape()[0]))
        for node in model.get_ordered_ops()
        if node.get_type_name() == "PagedAttentionExtension"
    ]
    assert found == [("key_cache.0", False), ("key_cache.1", True), ("key_cache.0", False)]
