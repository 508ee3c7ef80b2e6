"""Builds small graphs."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES


def with_output(node: ov.Node, name: str = "logits") -> ov.Node:
    node.output(0).set_names({name})
    return ops.result(node)


def parameter(name: str, dtype: type = np.int64) -> ov.Node:
    node = ops.parameter([-1, -1], dtype, name=name)
    node.output(0).set_names({name})
    return node


def recurrent(inputs: ov.Node, name: str) -> tuple[ov.Node, ov.Node]:
    """Returns a node that depends on all inputs so far, and its state."""
    past = ops.read_value(ops.constant(np.zeros((1, 1), np.float32)), name, np.float32, [1, 1])
    total = ops.reduce_sum(ops.convert(inputs, np.float32), ops.constant(np.array([0, 1])), True)
    state = ops.add(past, total)
    return state, ops.assign(state, name)


def recurrent_model() -> ov.Model:
    inputs = parameter("input_ids")
    state, assign = recurrent(inputs, "state")
    return ov.Model([with_output(state)], [assign], [inputs], "model")


def hybrid_model() -> ov.Model:
    model = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    inputs = model.input("input_ids").get_node()
    state, assign = recurrent(inputs, "conv.0")
    logits = ops.add(model.output("logits").get_node().input_value(0), state)
    sinks = [*model.get_sinks(), assign]
    return ov.Model([with_output(logits)], sinks, model.get_parameters(), "model")
