"""Tests of background responses."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from fastovms.errors import StateFailed
from fastovms.parts.responses.background import BackgroundRuns, ResponsesState
from fastovms.state.operations import Operations
from fastovms.state.store import ResponseProgress, StoredResponse
from tests.api.responses.conftest import (
    BACKGROUND,
    V1,
    V3,
    ask,
    get,
    paused,
    replayed,
    resume,
    start,
    wait_for,
)
from tests.api.responses.events import check, kinds
from tests.api.responses.taking_over import running_response
from tests.fakes import FakeStream
from tests.replicas import replace_operation


async def test_it_is_queued_then_in_progress_then_done(make):
    api = paused(make, num_steps=0)
    id = await start(api)
    assert (await get(api, id))["status"] == "queued"
    resume(api, 3)
    body = await wait_for(api, id, "in_progress")
    while not body["output"] or body["output"][0]["content"][0]["text"] != "Hel":
        body = await get(api, id)
    assert body["output"][0]["status"] == "in_progress"
    resume(api)
    body = await wait_for(api, id, "completed")
    assert body["output"][0]["content"][0]["text"] == "Hello!"
    assert body["usage"]["output_tokens"] == 7
    assert body["completed_at"] == 1_750_000_000


async def test_it_can_be_continued_when_it_is_done_only(make):
    api = paused(make)
    id = await start(api)
    body = {"model": "fake", "input": "B", "previous_response_id": id}
    assert await api.refused(V1, body) == "previous_response_id"
    resume(api)
    await wait_for(api, id, "completed")
    await api.answer(V1, body)


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "queued"])
async def test_running_or_queued_response_can_be_cancelled(make, is_running):
    api = paused(make, num_steps=3 if is_running else 0)
    id = await start(api)
    if is_running:
        await wait_for(api, id, "in_progress")
    status, body = await ask(api, "POST", f"{V1}/{id}/cancel")
    assert (status, body["status"]) == (200, "cancelled")
    assert body["completed_at"] is None
    assert api.backend.aborted
    assert [item["status"] for item in body["output"]] == ["incomplete"] * is_running
    assert await get(api, id) == body
    assert await ask(api, "POST", f"{V1}/{id}/cancel") == (200, body)


async def test_completed_response_cannot_be_cancelled(make):
    api = make()
    id = await start(api)
    await wait_for(api, id, "completed")
    status, body = await ask(api, "POST", f"{V1}/{id}/cancel")
    assert status == 400
    assert "it is completed" in body["error"]["message"]


async def test_delete_ends_it(make):
    api = paused(make)
    id = await start(api)
    status, body = await ask(api, "DELETE", f"{V1}/{id}")
    assert (status, body) == (200, {"id": id, "object": "response", "deleted": True})
    assert api.backend.aborted
    assert (await ask(api, "GET", f"{V1}/{id}"))[0] == 404


async def test_it_survives_its_client(make):
    api = paused(make)
    stream = FakeStream()
    asking = asyncio.ensure_future(api.call("POST", V1, {**BACKGROUND, "stream": True}, stream))
    await stream.first_write.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    resume(api)
    [first, *_] = [event for event in stream.events if "response" in event]
    body = await wait_for(api, first["response"]["id"], "completed")
    assert body["output"][0]["content"][0]["text"] == "Hello!"


async def test_response_that_cannot_be_stored_fails_with_the_reason(make, make_state, caplog):
    class Forgetful:
        """Loses the final state of a response, as on a full disk."""

        def __init__(self, store):
            self.store = store

        def __getattr__(self, name):
            return getattr(self.store, name)

        async def run(self, operation, *args, **keywords):
            if operation is Operations.finish_response:
                raise StateFailed("gone")
            return await self.store.run(operation, *args, **keywords)

    state = make_state()
    forgetful = ResponsesState(Forgetful(state.store), BackgroundRuns(10))  # type: ignore[arg-type]
    id = await start(make(state=forgetful))
    await forgetful.runs.drain(60)
    assert f"response {id} is lost: gone" in caplog.text
    body = await get(make(state=state), id)
    assert body["status"] == "failed"
    assert "could not be kept" in body["error"]["message"]


# Streams


def text_of(events: list) -> str:
    return "".join(event.get("delta", "") for event in events if event != "[DONE]")


async def test_a_background_stream(make):
    stream = FakeStream()
    api = make()
    await api.call("POST", V1, {**BACKGROUND, "stream": True}, stream)
    events = stream.events
    assert kinds(events)[:3] == ["created", "queued", "in_progress"]
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "queued"
    assert events[2]["response"]["status"] == "in_progress"
    response = check(list(events))
    assert response == await get(api, response["id"])
    assert await replayed(api, response["id"]) == events


@pytest.mark.parametrize(
    ("progress", "reason"),
    [
        (ResponseProgress.INTERRUPTED, "the server was stopped before the response was finished"),
        (ResponseProgress.RUNNING, "the response could not be kept when it was finished"),
    ],
)
@pytest.mark.parametrize(("path", "error_events"), [(V1, ["error"]), (V3, [])])
@pytest.mark.parametrize("after", [None, 0, 7])
async def test_the_stream_of_a_lost_response_ends(
    make, make_state, progress, reason, path, error_events, after
):
    state = make_state()
    api = make(state=state)
    done = await wait_for(api, await start(api), "completed")
    lost = {**done, "id": "resp_lost", "status": "in_progress", "usage": None}
    del lost["output"]
    stored = StoredResponse("resp_lost", orjson.dumps(lost), progress=progress)
    await state.store.run(Operations.add_response, "", stored)
    query = {} if after is None else {"starting_after": after}
    events = await replayed(api, "resp_lost", path, **query)
    assert kinds(events) == [*([] if query else ["created"]), *error_events, "failed"]
    if error_events:
        assert events[-3]["message"] == reason
    response = check(events, start=0 if after is None else after + 1)
    assert response["error"] == {"code": "server_error", "message": reason}
    assert response == await get(api, "resp_lost")


async def test_a_cancelled_stream_ends(make):
    api = paused(make)
    id = await start(api)
    follower = asyncio.ensure_future(replayed(api, id))
    await wait_for(api, id, "in_progress")
    await ask(api, "POST", f"{V1}/{id}/cancel")
    events = await follower
    assert events[-2]["type"] == "response.incomplete"
    response = check(events)
    assert response["status"] == "cancelled"
    assert response == await get(api, id)


async def test_the_last_event_comes_when_the_response_is_kept(make, make_state):
    state = make_state()
    api = paused(make, state=state)
    id = await start(api)
    kept = []

    async def note(tenant, response, **keywords):
        result = await finish(tenant, response, **keywords)
        kept.append(response.id)
        return result

    finish = replace_operation(state.store, Operations.finish_response, note)
    stream = FakeStream()
    end = stream.finish

    def check_kept(data: bytes = b"") -> None:
        assert kept == [id]
        end(data)

    stream.finish = check_kept  # type: ignore[method-assign]
    follower = asyncio.ensure_future(api.call("GET", f"{V1}/{id}?stream=true", None, stream))
    resume(api)
    await follower


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("starting_after=1", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=yes", "stream"),
        ("stream=", "stream"),
        ("include[]=everything", "include[0]"),
    ],
)
async def test_queries_that_are_refused(make, query, param):
    api = make()
    id = await start(api)
    status, body = await ask(api, "GET", f"{V1}/{id}?{query}")
    assert (status, body["error"]["param"]) == (400, param)


async def test_at_shutdown_it_fails_with_a_reason(make, make_state):
    state = make_state()
    api = paused(make, state=state)
    id = await start(api)
    await wait_for(api, id, "in_progress")
    await api.backend.close()
    await state.runs.drain(60)
    body = await get(api, id)
    assert body["status"] == "failed"
    assert body["error"]["message"] == "the server is shutting down"


async def test_there_may_be_only_so_many(make, make_state):
    api = paused(make, state=make_state(max_runs=2))
    ids = [await start(api) for _ in range(2)]
    status, body = await ask(api, "POST", V1, BACKGROUND)
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
    async with asyncio.timeout(60):
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
