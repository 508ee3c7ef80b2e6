from __future__ import annotations

import numpy as np
from openvino import opset13

from fastovms.engine.model.graph_walk import inputs_of, reached


def names(nodes) -> list[str]:
    return sorted(node.get_type_name() for node in nodes)


def test_graph_walk_meets_each_node_once():
    x = opset13.parameter([1], np.float32)
    double = opset13.add(x, x)
    both = opset13.multiply(double, opset13.relu(double))
    assert names(reached([both, both])) == ["Add", "Multiply", "Parameter", "Relu"]
    assert names(inputs_of(both)) == ["Add", "Relu"]


def test_graph_walk_follows_only_what_its_step_returns():
    x = opset13.parameter([1], np.float32)
    end = opset13.relu(opset13.exp(x))
    led = reached([end], lambda node: [] if node.get_type_name() == "Exp" else inputs_of(node))
    assert names(led) == ["Exp", "Relu"]
    consumers = reached(
        [x], lambda node: [t.get_node() for t in node.output(0).get_target_inputs()]
    )
    assert names(consumers) == ["Exp", "Parameter", "Relu"]
