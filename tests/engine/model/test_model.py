from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.raw_logits import as_float32
from fastovms.engine.model.step_inputs import StepLayout
from tests.engine.conftest import TINY_SHAPES


def logits_of(model: PagedModel) -> tuple[np.dtype[np.generic], NDArray[np.float32]]:
    """Of a prompt's tokens; and as what they came."""
    model.allocate_cache(2)
    layout = StepLayout(model.block_size)
    layout.add(array("q", range(40, 60)), 0, 20, array("i", [1]))
    logits = model.infer(layout.finish(array("q", range(20))))
    return logits.dtype, as_float32(logits).copy()


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_a_model_in_half_precision_says_nearly_what_an_exact_one_says(
    tiny_models: dict[str, Path], name: str
) -> None:
    is_capable = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precision, dtype = ("bf16", np.uint16) if is_capable else ("f32", np.float32)
    model = PagedModel.load(tiny_models[name], properties={"INFERENCE_PRECISION_HINT": precision})
    came_as, logits = logits_of(model)
    _, exact = logits_of(PagedModel.load(tiny_models[name], exact=True))
    assert came_as == dtype
    assert logits.shape == exact.shape == (20, model.vocab_size)
    assert np.abs(logits - exact).max() < 0.05 * np.abs(exact).max()
