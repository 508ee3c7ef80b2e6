from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from fastovms.doctor.weight_traffic import read_traffic

WIDTH, VOCABULARY, EXPERTS = 8, 100, 4
MATRIX = WIDTH * WIDTH
TABLE = VOCABULARY * WIDTH


def constant(*shape: int, name: str = "weight") -> ov.Node:
    node = ops.constant(np.zeros(shape, np.int8))
    node.set_friendly_name(name)
    return node


def model(*, is_tied: bool, expert: str | None = None) -> ov.Model:
    """An embedding, a matrix, maybe experts, and the logits. Weights are of one byte each, and are
    decompressed as in real models."""
    token = ops.parameter([-1], np.int64, "token")
    scale = ops.constant(np.float32(1))
    table = ops.multiply(ops.convert(constant(VOCABULARY, WIDTH), np.float32), scale)
    hidden = ops.gather(table, token, ops.constant(np.int64(0)))
    hidden = ops.matmul(hidden, ops.convert(constant(WIDTH, WIDTH), np.float32), False, True)
    if expert == "named":
        for number in range(EXPERTS):
            weight = constant(WIDTH, WIDTH, name=f"layers.0.experts.{number}.up")
            hidden = ops.matmul(hidden, ops.convert(weight, np.float32), False, True)
    elif expert == "stacked":
        stacked = ops.convert(constant(EXPERTS, WIDTH, WIDTH), np.float32)
        hidden = ops.matmul(hidden, stacked, False, True)
    elif expert == "shared":
        weight = constant(WIDTH, WIDTH, name="layers.0.shared_experts.experts.up")
        hidden = ops.matmul(hidden, ops.convert(weight, np.float32), False, True)
    head = table if is_tied else ops.convert(constant(VOCABULARY, WIDTH), np.float32)
    return ov.Model([ops.matmul(hidden, head, False, True)], [token])


AXIS, SCALE = 8, 4
"""Their bytes."""


def test_a_table_that_is_looked_up_is_not_read() -> None:
    traffic = read_traffic(model(is_tied=False), {})
    assert traffic.total == 2 * TABLE + MATRIX + SCALE + AXIS
    assert traffic.looked_up == TABLE + SCALE
    assert traffic.per_token == TABLE + MATRIX + AXIS


def test_a_table_that_is_the_head_too_is_read() -> None:
    traffic = read_traffic(model(is_tied=True), {})
    assert traffic.looked_up == 0
    assert traffic.per_token == traffic.total == TABLE + MATRIX + SCALE + AXIS


@pytest.mark.parametrize("expert", ["named", "stacked"])
@pytest.mark.parametrize(
    "config",
    [
        {"num_experts": EXPERTS, "num_experts_per_tok": 1},
        {"text_config": {"num_local_experts": EXPERTS, "num_experts_per_token": 1}},
    ],
)
def test_a_token_reads_its_experts_only(expert: str, config: Mapping[str, object]) -> None:
    traffic = read_traffic(model(is_tied=True, expert=expert), config)
    assert traffic.experts == EXPERTS * MATRIX
    assert traffic.active_share == 1 / EXPERTS
    assert traffic.per_token == traffic.total - (EXPERTS - 1) * MATRIX


def test_what_is_not_known_counts_in_full() -> None:
    assert read_traffic(model(is_tied=True, expert="named"), {}).experts == 0
    unknown = read_traffic(model(is_tied=True, expert="named"), {"num_experts": EXPERTS})
    assert unknown.per_token == unknown.total


def test_shared_experts_compute_every_token() -> None:
    config = {"num_experts": EXPERTS, "num_experts_per_tok": 1}
    assert read_traffic(model(is_tied=True, expert="shared"), config).experts == 0
