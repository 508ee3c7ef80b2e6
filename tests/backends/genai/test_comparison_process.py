"""Tests of the process that finds parts of a graph which the pipeline ignores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from fastovms.backends.model_files import MAX_DIFFERENCE, NotComparable
from fastovms.server_config import DEMO_MODEL
from tests.backends.genai.test_backend import difference


def demo_model(directory: Path, change: Callable[[ov.Model], None]) -> Path:
    """Creates a model with a changed graph in `directory`."""
    model = ov.Core().read_model(DEMO_MODEL / "openvino_model.xml")
    change(model)
    model.validate_nodes_and_infer_types()
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)
    for file in DEMO_MODEL.iterdir():
        if not file.name.startswith("openvino_model."):
            (directory / file.name).symlink_to(file)
    return directory


def biased(model: ov.Model) -> None:
    """Adds a bias to the scores that the transformation to paged attention does not recognise."""
    for layer in model.get_ordered_ops():
        if layer.get_type_name() == "ScaledDotProductAttention":
            length = ops.gather(ops.shape_of(layer.input_value(1)), np.int64(2), np.int64(0))
            keys = ops.convert(ops.range(np.int64(0), length, np.int64(1), "i64"), np.float32)
            mask = ops.add(layer.input_value(3), ops.sqrt(keys))
            layer.input(3).replace_source_output(mask.output(0))


def with_foreign_input(model: ov.Model) -> None:
    parameter = ops.parameter([-1, -1], np.float32, name="foreign")
    parameter.output(0).set_names({"foreign"})
    result = model.output("logits").get_node()
    logits = ops.add(result.input_value(0), ops.reduce_sum(parameter, np.array([0, 1])))
    result.input(0).replace_source_output(logits.output(0))
    model.add_parameters([parameter])


def test_bias_that_a_pipeline_ignores_is_a_difference(tmp_path: Path) -> None:
    assert difference(demo_model(tmp_path, biased)) > 2 * MAX_DIFFERENCE


def test_graph_that_cannot_be_computed_is_not_comparable(tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match="foreign"):
        difference(demo_model(tmp_path, with_foreign_input))
