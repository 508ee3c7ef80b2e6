"""Factors of long texts are chosen by each sequence's length, in graphs made for the test."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from fastovms.engine.model.graph.long_rope import TOKEN_SEQUENCE_LENS, LongRope, scale_by_sequence

SHORT, LONG = np.float32([[1, 2]]), np.float32([[3, 4]])


def scaled(limit: int, *, more: ov.Node | None = None) -> ov.Model:
    """Multiplies each position by factors that the highest of them chooses."""
    positions = ops.parameter([-1], np.int64, name="position_ids")
    positions.output(0).set_names({"position_ids"})
    highest = ops.reduce_max(positions, np.int64(0), False)
    factors = ops.select(
        ops.less(highest, np.int64(limit)), ops.constant(SHORT), ops.constant(LONG)
    )
    if more is not None:
        is_longer = ops.less(highest, np.int64(2 * limit))
        factors = ops.select(is_longer, factors, more)
    column = ops.unsqueeze(ops.convert(positions, np.float32), np.int64(1))
    angles = ops.multiply(column, factors)
    return ov.Model([ops.result(angles)], [positions], "model")


def test_each_token_has_the_factors_of_its_sequence() -> None:
    model = scaled(limit=10)
    assert scale_by_sequence(model) == LongRope(switch_len=10)
    compiled = ov.Core().compile_model(model, "CPU")
    positions = np.array([3, 12, 2])
    found = compiled({"position_ids": positions, TOKEN_SEQUENCE_LENS: np.array([10, 13, 11])})[0]
    factors = np.concatenate([SHORT, LONG, LONG])
    np.testing.assert_allclose(found, positions[:, None] * factors)


@pytest.mark.parametrize("limit", [0, 2**31])
def test_factors_that_never_change_leave_the_model_as_it_is(limit: int) -> None:
    model = scaled(limit)
    assert scale_by_sequence(model) == LongRope()
    assert len(model.inputs) == 1


def test_of_more_than_two_kinds_of_factors_only_the_first_is_served() -> None:
    model = scaled(limit=10, more=ops.constant(np.float32([[5, 6]])))
    assert scale_by_sequence(model) == LongRope(max_len=10)


def test_a_condition_of_the_whole_batch_bounds_its_texts() -> None:
    longest = ops.parameter([], np.int32, name="max_context_len")
    longest.output(0).set_names({"max_context_len"})
    table = ops.select(
        ops.less_equal(longest, np.int32(7)), ops.constant(SHORT), ops.constant(LONG)
    )
    model = ov.Model([ops.result(table)], [longest], "model")
    assert scale_by_sequence(model) == LongRope(max_len=7)
