"""Positions that a graph counts itself become those of its tokens, in graphs made for the test."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from fastovms.engine.model.graph.counted_positions import use_own_positions


def counting(start: int | None = None) -> ov.Model:
    """Repeats positions for each of a batch of texts of one token: those from the end of what is
    cached, or from a certain one."""
    positions = ops.parameter([-1], np.int64, name="position_ids")
    positions.output(0).set_names({"position_ids"})
    longest = ops.parameter([], np.int64, name="max_context_len")
    longest.output(0).set_names({"max_context_len"})
    first = ops.subtract(longest, np.int64(1)) if start is None else ops.constant(np.int64(start))
    counted = ops.range(first, longest, np.int64(1), "i64")
    row = ops.reshape(counted, np.array([1, 1, -1]), False)
    batch = ops.shape_of(positions)
    repeated = ops.broadcast(row, ops.concat([np.array([3]), batch, np.array([1])], 0))
    return ov.Model([ops.result(repeated)], [positions, longest], "model")


def computed(model: ov.Model) -> list[list[list[int]]]:
    inputs = {"position_ids": np.array([4, 9, 0]), "max_context_len": np.array(10)}
    found: list[list[list[int]]] = ov.Core().compile_model(model, "CPU")(inputs)[0].tolist()
    return found


def test_each_token_has_its_own_position() -> None:
    model = counting()
    assert computed(model) == [[[9]] * 3] * 3
    use_own_positions(model)
    assert computed(model) == [[[4], [9], [0]]] * 3


@pytest.mark.parametrize("start", [0, 9])
def test_what_begins_at_a_certain_position_is_left_as_it_is(start: int) -> None:
    model = counting(start)
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    use_own_positions(model)
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == before
