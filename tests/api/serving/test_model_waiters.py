from __future__ import annotations

import pytest

from fastovms.api.serving.model_waiters import ModelWaiters
from fastovms.api.serving.residency import Residency
from fastovms.config.residency_config import ResidencyConfig
from fastovms.errors import BackendUnavailable

REFUSAL = BackendUnavailable("no")


@pytest.fixture
def residency() -> Residency:
    residency = Residency(ResidencyConfig())
    residency.add("a", 1)
    return residency


@pytest.fixture
def waiters(residency: Residency) -> ModelWaiters:
    return ModelWaiters(residency, lambda: 0.0)


def load(residency: Residency) -> None:
    assert residency.next_move(0.0) is not None
    residency.loaded(0.0)


async def test_each_who_waits_has_the_model_in_use(
    residency: Residency, waiters: ModelWaiters
) -> None:
    first, second = waiters.add("a"), waiters.add("a", is_order=True)
    second.cancel()
    assert (waiters.num_waiting("a"), waiters.names) == (2, ["a"])
    load(residency)
    waiters.hand_over("a")
    assert first.done()
    assert residency["a"].num_uses == 1, "who has left uses nothing"
    assert (residency["a"].num_waiting, waiters.names) == (0, [])
    assert not waiters.remove("a", first)


async def test_who_leaves_waits_no_longer(residency: Residency, waiters: ModelWaiters) -> None:
    waiting = waiters.add("a")
    assert waiters.remove("a", waiting)
    assert residency["a"].num_waiting == waiters.num_waiting("a") == 0


async def test_orders_may_be_refused_while_requests_wait_on(
    residency: Residency, waiters: ModelWaiters
) -> None:
    request, order = waiters.add("a"), waiters.add("a", is_order=True)
    waiters.refuse_orders("a", REFUSAL)
    assert order.exception() is REFUSAL
    assert not request.done()
    assert residency["a"].num_waiting == 1
    waiters.refuse("a", REFUSAL)
    assert request.exception() is REFUSAL
    assert residency["a"].num_waiting == 0
