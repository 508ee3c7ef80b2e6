"""What runs on a server: how many, under which ids, and until it is kept."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.errors import StateFailed
from tests.api.responses.conftest import ask, paused, resume
from tests.api.responses.taking_over import running_response
from tests.api.responses.test_background import BODY, V1, get, replayed, start, wait_for
from tests.fakes import FakeStream


async def test_there_may_be_only_so_many(make, make_state):
    api = paused(make, state=make_state(max_runs=2))
    ids = [await start(api) for _ in range(2)]
    status, body = await ask(api, "POST", V1, BODY)
    assert status == 429
    assert body["error"]["type"] == "rate_limit_error"
    resume(api)
    for id in ids:
        await wait_for(api, id, "completed")
    assert await start(api)


@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["whole", "streamed"])
async def test_running_foreground_response_cannot_be_cancelled(make, fields):
    api = paused(make)
    body = {"model": "fake", "input": "Hi", "request_id": "mine", **fields}
    task = asyncio.ensure_future(api.call("POST", V1, body, FakeStream(), tenant="me"))
    await api.backend.received.wait()
    place = f"{V1}/resp_mine"
    status, answer = await ask(api, "POST", f"{place}/cancel", tenant="me")
    assert status == 400
    assert "in the background" in answer["error"]["message"]
    assert (await ask(api, "POST", f"{place}/cancel", tenant="you"))[0] == 404
    assert (await ask(api, "POST", f"{V1}/resp_other/cancel", tenant="me"))[0] == 404
    for again in ({}, {"background": True}):
        status, answer = await ask(api, "POST", V1, {**body, **again}, tenant="me")
        assert (status, answer["error"]["param"]) == (400, "request_id")
    resume(api)
    await task
    assert (await ask(api, "POST", f"{place}/cancel", tenant="me"))[0] == 400
    status, kept = await ask(api, "GET", place, tenant="me")
    assert (status, kept["status"]) == (200, "completed")


@pytest.mark.parametrize("is_kept", [True, False])
async def test_response_of_a_disconnected_client_is_not_found(make, is_kept):
    api = paused(make)
    body = {"model": "fake", "input": "Hi", "request_id": "mine", "store": is_kept}
    task = asyncio.ensure_future(api.call("POST", V1, body, FakeStream()))
    await api.backend.received.wait()
    assert (await ask(api, "POST", f"{V1}/resp_mine/cancel"))[0] == (400 if is_kept else 404)
    task.cancel()
    await asyncio.wait((task,))
    assert (await ask(api, "POST", f"{V1}/resp_mine/cancel"))[0] == 404


@pytest.mark.slow
async def test_response_is_stored_once_the_store_recovers(make_replicas, monkeypatch):
    monkeypatch.setattr("fastovms.parts.responses.background._RETRY", 0.001)
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    follower = asyncio.ensure_future(replayed(a.api, id))
    a.store.error = StateFailed("gone")
    resume(a.api)
    async with asyncio.timeout(10):
        while (answer := await ask(a.api, "GET", f"{V1}/{id}"))[0] == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    status, body = answer
    assert status == 503
    assert "cannot be stored until the response store is" in body["error"]["message"]
    assert not follower.done()
    a.store.error = None
    events = await follower
    assert events[-2]["type"] == "response.completed"
    assert await get(b.api, id) == events[-2]["response"]
