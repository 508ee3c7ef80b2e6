"""Every format of weights stands for the numbers that it was made of."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from bench.random_models.weights import QUANTIZATIONS, WEIGHT_FORMATS, QuantizedMatrix, WeightFormat

ROWS, COLUMNS = 6, 256


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_the_graph_has_the_numbers_of_the_matrix(name: str) -> None:
    weight_format = WeightFormat(name)
    rng = np.random.default_rng(3)
    matrix = QuantizedMatrix.random(rng, ROWS, COLUMNS, 0.5, weight_format.quantization)
    zero = ops.parameter([1], np.float32)
    node = ops.add(weight_format.node(matrix, "weights"), zero)
    compiled = ov.Core().compile_model(
        ov.Model([node], [zero]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    (weights,) = compiled([np.zeros(1, np.float32)]).values()
    assert weights.shape == (ROWS, COLUMNS)
    np.testing.assert_allclose(weights, matrix.dense(), atol=2e-3)
    assert 0.4 < weights.std() < 0.6


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_rows_share_as_many_scales_as_they_have_groups(name: str) -> None:
    matrix = QuantizedMatrix.random(
        np.random.default_rng(3), ROWS, COLUMNS, 0.5, QUANTIZATIONS[name]
    )
    groups = {"int4": 8, "int4-asym-128": 2, "int4-sym-128": 2, "int4-sym-64": 4}.get(name, 1)
    assert matrix.scale.shape == (ROWS, groups, 1)
    assert (np.unique(matrix.zero_point).tolist() == [8]) == ("sym-" in name and "asym" not in name)
