"""What is wrong with a paged graph is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import opset13

from fastovms.backends.model_files.graph_check import MAX_DIFFERENCE
from fastovms.engine.model.graph.long_rope import TOKEN_SEQUENCE_LENS
from fastovms.engine.model.graph.paging import PagedGraph
from fastovms.engine.model.graph_comparison import largest_difference
from fastovms.engine.model.model import ExportedModel

MODELS = Path(__file__).parents[2] / "models" / "architectures"
SCALE, WINDOW, SLOPES = 9, 10, 11
"""Inputs of a paged attention."""


def attention_with(index: int, value: Any) -> Callable[[PagedGraph], None]:
    """Changes the first layer's."""

    def change(graph: PagedGraph) -> None:
        (target,) = graph.model.input("key_cache.0").get_target_inputs()
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
