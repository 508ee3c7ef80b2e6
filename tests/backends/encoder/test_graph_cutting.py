from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from fastovms.backends.encoder.graph_cutting import CARRIED, cut
from tests.encoder_models import encoder_dir

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.mark.parametrize(("max_segments", "num"), [(1, 1), (2, 2), (4, 4)])
def test_segments_compute_what_the_whole_does(max_segments, num):
    core = ov.Core()
    path = encoder_dir() / "openvino_model.xml"
    rng = np.random.default_rng(0)
    inputs = {
        "input_ids": rng.integers(4, 200, (2, 7)),
        "attention_mask": np.array([[1] * 7, [1] * 4 + [0] * 3]),
        "token_type_ids": np.array([[0, 0, 0, 1, 1, 1, 1]] * 2),
    }
    whole = core.compile_model(core.read_model(path), "CPU", EXACT)(inputs)[0]
    segments = cut(core.read_model(path), max_segments)
    assert len(segments) == num
    carried = None
    for segment in segments:
        compiled = core.compile_model(segment, "CPU", EXACT)
        names = [value.get_any_name() for value in compiled.inputs]
        carried = compiled({n: carried if n == CARRIED else inputs[n] for n in names})[0].copy()
    np.testing.assert_allclose(carried, whole, atol=1e-5)


def test_what_cannot_be_cut_stays_whole():
    ops = ov.opset13
    ids = ops.parameter([-1, 4], np.float32, name="a")
    model = ov.Model([ops.result(ops.relu(ids))], [ids], "no weights")
    assert len(cut(model, 8)) == 1
