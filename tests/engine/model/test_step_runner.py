"""Infer requests that are fed with one step after another, each of another size."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.raw_logits import RawLogits, as_float32
from fastovms.engine.model.step_inputs import StepLayout


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_steps_may_be_of_any_number_of_rows(tiny_models: dict[str, Path], precision: str) -> None:
    properties = {"INFERENCE_PRECISION_HINT": precision}
    model = PagedModel.load(tiny_models["tiny"], properties=properties)
    model.allocate_cache(10)
    alone = [step(model, [token_id], [0]).copy() for token_id in range(40, 50)]
    for num_rows in (1, 3, 2, 0, 10, 1, 0, 7, 8, 10):
        rows = list(range(num_rows))
        logits = step(model, range(40, 50), rows)
        assert logits.shape == (num_rows, model.vocab_size)
        for row, expected in zip(logits, alone, strict=False):
            others = as_float32(expected[0])
            assert np.abs(as_float32(row) - others).max() < 0.05 * np.abs(others).max()


def step(model: PagedModel, token_ids: Iterable[int], rows: list[int]) -> RawLogits:
    """The first token of some sequences; `rows` are those whose logits are wanted."""
    layout = StepLayout(model.block_size)
    for i, token_id in enumerate(token_ids):
        layout.add(array("q", [token_id]), 0, 1, array("i", [i]))
    return model.infer(layout.finish(array("q", rows)))
