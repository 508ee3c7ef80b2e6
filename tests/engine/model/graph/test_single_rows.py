"""A variant of the model for steps of one row computes what the other one computes."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13

from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, Precisions, with_single_rows
from fastovms.engine.model.graph.single_rows import MAX_WEIGHTS_SIZE, fix_shapes, is_single_row
from fastovms.engine.model.model import ExportedModel, PagedModel
from fastovms.engine.model.raw_logits import as_float32
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from tests.engine.conftest import TINY_SHAPES

PROMPT = array("q", range(40, 80))


def step(start: int, end: int, *, num_sequences: int = 1) -> StepInputs:
    layout = StepLayout(32)
    last = [layout.add(PROMPT, start, end, array("i", (1, 2))) for _ in range(num_sequences)]
    return layout.finish(array("q", last))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (step(20, 21), True),
        (step(0, 1), True),
        (step(0, 2), False),
        (step(20, 21, num_sequences=2), False),
        (step(20, 21)._replace(sampled_token_indices=np.empty(0, np.int64)), False),
    ],
)
def test_a_step_of_one_row_has_one_token_whose_logits_are_wanted(
    inputs: StepInputs, expected: bool
) -> None:
    assert is_single_row(inputs) == expected


@pytest.mark.parametrize("name", TINY_SHAPES)
@pytest.mark.parametrize("cache", ["f32", "u8"])
def test_logits_are_those_without_it(tiny_models: dict[str, Path], name: str, cache: str) -> None:
    files = ExportedModel(tiny_models[name], properties={"KV_CACHE_PRECISION": cache})
    plain = replace(files.choices[0], has_single_rows=False)
    expected = _decoded(files.compile([plain])[1])
    _, model = files.compile([replace(plain, has_single_rows=True)])
    assert model.has_single_rows
    assert np.abs(_decoded(model) - expected).max() < 1e-4 * np.abs(expected).max()


def _decoded(model: PagedModel) -> NDArray[np.float32]:
    """The logits of tokens that are computed one by one, and those of a pair between them."""
    model.allocate_cache(3)
    model.infer(step(0, 30))
    rows = []
    for start, end in ((30, 31), (31, 32), (32, 33), (33, 35), (35, 36)):
        rows.append(as_float32(model.infer(step(start, end))).copy())
    return np.concatenate(rows)


def test_a_model_with_inputs_of_other_shapes_stays_as_it_is() -> None:
    ids = opset13.parameter([-1, -1], ov.Type.i64)
    ids.output(0).set_names({"input_ids"})
    model = ov.Model([opset13.result(ids)], [ids])
    assert not fix_shapes(model)
    assert model.input(0).get_partial_shape() == ov.PartialShape([-1, -1])


@pytest.mark.parametrize(
    ("weights_size", "available", "choice", "expected"),
    [
        (MAX_WEIGHTS_SIZE, 4 * MAX_WEIGHTS_SIZE, Precisions("", {}), True),
        (MAX_WEIGHTS_SIZE, 4 * MAX_WEIGHTS_SIZE - 8, Precisions("", {}), False),
        (MAX_WEIGHTS_SIZE, 4 * MAX_WEIGHTS_SIZE, Precisions("", {}, {}), False),
        (MAX_WEIGHTS_SIZE, 8 * MAX_WEIGHTS_SIZE, Precisions("", {}, {}), True),
        (MAX_WEIGHTS_SIZE + 1, 2**40, Precisions("", {}), False),
        (EXACT_WEIGHTS_SIZE, 2**40, Precisions("", {}), False),
        (2**28, 2**40, Precisions("", {}, is_batch_invariant=True), False),
    ],
)
def test_who_has_it(weights_size: int, available: int, choice: Precisions, expected: bool) -> None:
    choice = with_single_rows(choice, weights_size=weights_size, available=available)
    assert choice.has_single_rows == expected
