from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from fastovms.backends.encoder.pooling import pooled
from fastovms.encoding import Pooling

STATES = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("pooling", "rows"),
    [
        (Pooling.CLS, [STATES[0, 0], STATES[1, 0]]),
        (Pooling.MEAN, [STATES[0].mean(0), STATES[1, :2].mean(0)]),
        (Pooling.LAST, [STATES[0, 3], STATES[1, 1]]),
    ],
)
def test_pooling(pooling, rows):
    states = ops.parameter([-1, -1, 3], np.float32, name="states")
    mask = ops.parameter([-1, -1], np.int64, name="mask")
    output = pooled(states.output(0), mask.output(0), pooling)
    compiled = ov.Core().compile_model(
        ov.Model([ops.result(output)], [states, mask], "pooling"),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32"},
    )
    np.testing.assert_allclose(compiled([STATES, MASK])[0], rows, rtol=1e-6)
