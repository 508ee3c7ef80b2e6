"""What connections share: ids of requests, and who observes them."""

from __future__ import annotations

import pytest

from tests.http.client import talk
from tests.http.conftest import Start
from tests.http.more_cases import get


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("abc-123", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("\xe9", False)],
)
async def test_request_id(given: str, echoed: bool, start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get("/health", f"X-Request-Id: {given}"))
    (answer,) = conversation.answers()
    assert (answer.headers["x-request-id"] == given) is echoed
    assert running.site.requests[0].id == answer.headers["x-request-id"]


async def test_an_observer_that_fails_harms_nobody(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def observer(exchange: object) -> None:
        raise ValueError("on purpose")

    running = await start({"observers": (observer,)})
    assert (await talk(running.port, get() * 2, answers=2)).statuses == [200, 200]
    assert "an observer of requests failed" in caplog.text
