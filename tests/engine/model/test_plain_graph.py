"""Log probabilities of a graph as it was exported."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.model.plain_graph import UnknownInput, compute_plain, log_softmax

TEXT = {"input_ids": np.array([[3, 1, 4, 1, 5]])}


def tiny() -> ov.Model:
    return LlamaGraph(SHAPES["tiny"], 300, seed=0).build()


def test_logarithms_of_shares() -> None:
    logits = np.log(np.float32([[1, 3], [2, 2]])) + 1000
    np.testing.assert_allclose(np.exp(log_softmax(logits)), [[0.25, 0.75], [0.5, 0.5]], rtol=1e-3)


def test_where_a_text_begins_changes_nothing_in_a_model_that_knows_distances() -> None:
    first, second = compute_plain(ov.Core(), tiny(), TEXT, starts=(0, 7))
    assert first.shape == second.shape
    np.testing.assert_allclose(np.exp(first).sum(-1), 1, rtol=1e-4)
    np.testing.assert_allclose(first, second, atol=1e-3)


def test_an_input_that_nobody_knows_is_named() -> None:
    model = tiny()
    more = ops.parameter([1], np.float32, name="more")
    more.output(0).set_names({"more"})
    result = model.output("logits").get_node()
    result.input(0).replace_source_output(ops.add(result.input_value(0), more).output(0))
    model.add_parameters([more])
    with pytest.raises(UnknownInput, match=r"^more$"):
        compute_plain(ov.Core(), model, TEXT)
