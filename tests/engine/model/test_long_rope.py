"""Tests of `fastovms/engine/model/long_rope.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from fastovms.engine.model.long_rope import TOKEN_SEQUENCE_LENS, LongRope, scale_by_sequence

# Factors for long texts are chosen by each sequence's length, in graphs built for the test.


SHORT, LONG = np.float32([[1, 2]]), np.float32([[3, 4]])


def scaled(limit: int, *, more: ov.Node | None = None) -> ov.Model:
    """Multiplies each position by factors that the highest position chooses."""
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


@pytest.mark.parametrize("limit", [0, 2**31])
def test_factors_that_never_change_leave_the_model_as_it_is(limit: int) -> None:
    model = scaled(limit)
    assert scale_by_sequence(model) == LongRope()
    assert len(model.inputs) == 1


def test_only_the_first_of_several_rope_factors_is_served() -> None:
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


# Rows of rotation tables become those of the tokens' own positions, in graphs built for the
# test.


def table(limit: int, *, step: int = 1) -> ov.Model:
    """Takes rotations of positions from a table of all positions, scaled by the longest text's
    length."""
    longest = ops.parameter([], np.int32, name="max_context_len")
    longest.output(0).set_names({"max_context_len"})
    positions = ops.parameter([-1], np.int64, name="position_ids")
    positions.output(0).set_names({"position_ids"})
    is_long = ops.greater(longest, np.int32(limit))
    factors = ops.select(is_long, ops.constant(LONG), ops.constant(SHORT))
    scale = ops.select(is_long, ops.constant(np.float32(5)), ops.constant(np.float32(7)))
    end = ops.convert(longest, np.int64)
    counted = ops.convert(ops.range(np.int64(0), end, np.int64(step), "i64"), np.float32)
    angles = ops.matmul(ops.unsqueeze(counted, np.int64(1)), factors, False, False)
    rotations = ops.multiply(ops.cos(angles), scale)
    rows = ops.gather(rotations, ops.unsqueeze(positions, np.int64(1)), np.int64(0))
    return ov.Model([ops.result(rows)], [longest, positions], "model")


def test_rows_of_a_table_are_computed_for_each_token_by_its_sequence() -> None:
    model = table(limit=10)
    assert scale_by_sequence(model) == LongRope(switch_len=10, has_tables=True)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    positions = np.array([3, 12, 2])
    inputs = {
        "position_ids": positions,
        "max_context_len": np.array(13, np.int32),
        TOKEN_SEQUENCE_LENS: np.array([10, 13, 11]),
    }
    names = [port.get_any_name() for port in compiled.inputs]
    found = compiled({name: inputs[name] for name in names})[0]
    factors = np.concatenate([SHORT, LONG, LONG])
    scales = np.array([[7], [5], [5]])
    np.testing.assert_allclose(
        found[:, 0], np.cos(positions[:, None] * factors) * scales, atol=1e-5
    )


def whole_table(limit: int) -> ov.Model:
    """Does not gather rows."""
    model = table(limit)
    gather = model.get_results()[0].input_value(0).get_node()
    return ov.Model([ops.result(gather.input_value(0))], model.get_parameters(), "model")


@pytest.mark.parametrize("make", [lambda: table(10, step=2), lambda: whole_table(10)])
def test_a_table_of_another_form_bounds_the_texts(make: Callable[[], ov.Model]) -> None:
    model = make()
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    assert scale_by_sequence(model) == LongRope(max_len=10)
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == before
