"""Tests of several replicas: which one runs a response, cancellation, and the loss of a replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pytest

from fastovms.errors import StateFailed
from fastovms.parts.responses import resumption
from fastovms.parts.responses.background import BackgroundRuns
from fastovms.parts.responses.resumption import LeaseKeeper
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import (
    OwnedResponse,
    ResponseKey,
    ResponseProgress,
    Resumption,
    StoredResponse,
)
from tests.api.responses.conftest import BACKGROUND, V1, ask, get, replayed, resume, start
from tests.api.responses.taking_over import renew_until, running_response
from tests.fakes import FakeStream
from tests.replicas import LEASE, replace_operation
from tests.state.sqlite.test_location import open_at


async def until_told(replica, id: str, status: str) -> dict:
    """Returns the events that a replica sends of a response that runs on another one, up to a
    status."""
    async with asyncio.timeout(60):
        while (body := await get(replica.api, id))["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return body


async def renew_for(seconds: int, clock, *replicas) -> None:
    """Has replicas renew their leases every second."""
    for _ in range(seconds):
        for replica in replicas:
            await replica.renew()
        clock.now += 1


async def test_response_is_read_from_another_replica(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await start(a.api)
    told = await get(b.api, id)
    assert (told["status"], told["output"], told["error"]) == ("queued", [], None)
    resume(a.api, 3)
    told = await until_told(b, id, "in_progress")
    assert told == {**await get(a.api, id), "output": told["output"]}
    resume(a.api)
    assert await until_told(b, id, "completed") == await get(a.api, id)


async def test_response_running_on_another_replica_cannot_be_continued(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    body = {"model": "fake", "input": "B", "previous_response_id": id}
    assert await b.api.refused(V1, body) == "previous_response_id"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_another_replica_cancels(make_replicas, method):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    place = f"{V1}/{id}"
    asking = asyncio.ensure_future(
        ask(b.api, method, f"{place}/cancel" if method == "POST" else place)
    )
    await asyncio.sleep(0.01)
    assert not asking.done()
    status, body = await renew_until(a, asking)
    assert status == 200
    assert a.api.backend.aborted
    if method == "POST":
        assert body["status"] == "cancelled"
        assert body == await get(a.api, id) == await get(b.api, id)
        assert await ask(b.api, "POST", f"{place}/cancel") == (200, body)
    else:
        assert body["deleted"] is True
        for replica in (a, b):
            assert (await ask(replica.api, "GET", place))[0] == 404


@pytest.mark.slow
async def test_a_cancel_wakes_the_owner(make_replicas, monkeypatch):
    monkeypatch.setattr(resumption, "_INTERVAL", 3600.0)
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    a.keeper.start()
    async with asyncio.timeout(60):
        status, body = await ask(b.api, "POST", f"{V1}/{id}/cancel")
    assert (status, body["status"]) == (200, "cancelled")
    await a.keeper.close()


@pytest.mark.slow
async def test_the_response_of_a_replica_that_is_gone_has_failed(make_replicas):
    (a, b), clock = make_replicas("a", "b")
    id = await running_response(a)
    follower = asyncio.ensure_future(replayed(b.api, id))
    cancel = asyncio.ensure_future(ask(b.api, "POST", f"{V1}/{id}/cancel"))
    await until_told(b, id, "in_progress")
    for _ in range(int(LEASE) + 1):
        await b.renew()
        assert (await get(b.api, id))["status"] == "in_progress"
        clock.now += 1
    await b.renew()
    status, body = await cancel
    assert status == 400
    assert "it is failed" in body["error"]["message"]
    body = await get(b.api, id)
    assert body["error"]["message"] == "the server was stopped before the response was finished"
    events = await follower
    assert [event["type"] for event in events[-3:-1]] == ["error", "response.failed"]
    assert events[-2]["response"] == body
    # The replica was only slow.
    await a.renew()
    assert (await get(a.api, id))["status"] == "failed"
    assert a.api.backend.aborted


@pytest.mark.slow
async def test_outage_of_the_store_fails_no_response(make_replicas):
    (a, b), clock = make_replicas("a", "b")
    id = await running_response(a)
    await renew_for(20, clock, a, b)
    for replica in (a, b):
        replica.store.error = StateFailed("gone")
    await renew_for(20, clock, a, b)
    b.store.error = None
    await renew_for(int(LEASE) - 2, clock, b)
    a.store.error = None
    await a.renew()
    await renew_for(20, clock, b, a)
    resume(a.api)
    assert await until_told(b, id, "completed")


@pytest.mark.slow
async def test_a_replica_that_was_stopped_for_a_while_does_not_end_others(make_replicas):
    (a, b), clock = make_replicas("a", "b")
    id = await running_response(a)
    await renew_for(20, clock, a, b)
    clock.now += 3 * LEASE  # both were, and a begins again a little later
    await b.renew()
    await a.renew()
    resume(a.api)
    assert await until_told(b, id, "completed")


async def test_response_deleted_on_another_replica_is_aborted(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    assert await b.store.run(Operations.delete_response, "", id)
    await a.renew()
    await a.runs.drain(60)
    assert a.api.backend.aborted
    assert (await ask(a.api, "GET", f"{V1}/{id}"))[0] == 404


async def test_response_without_a_lease_is_given_up(make_replicas, monkeypatch):
    monkeypatch.setattr("fastovms.parts.responses.background._PATIENCE", 0.0)
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    a.store.error = StateFailed("gone")
    resume(a.api)
    await a.runs.drain(60)
    a.store.error = None
    assert (await get(b.api, id))["status"] in ("queued", "in_progress")
    await a.renew()
    assert (await get(b.api, id))["status"] == "failed"


async def test_a_replica_that_ends_gives_up_what_it_runs(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    a.keeper.start()
    await a.keeper.close()
    assert (await get(b.api, id))["status"] == "failed"


@pytest.mark.slow
async def test_given_up_response_ends_as_stored(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    follower = asyncio.ensure_future(replayed(a.api, id))
    await a.store.run(Operations.give_up, [ResponseKey("", id)])
    resume(a.api)
    events = await follower
    assert events[-2]["type"] == "response.failed"
    assert events[-2]["response"] == await get(b.api, id)
    assert [event["sequence_number"] for event in events[:-1]] == list(range(len(events) - 1))


@pytest.mark.parametrize("in_background", [True, False])
async def test_one_of_two_replicas_gets_an_id(make_replicas, in_background):
    (a, b), _ = make_replicas("a", "b")
    body = {**BACKGROUND, "background": in_background, "request_id": "mine"}
    for replica in (a, b):
        resume(replica.api)
    answers = await asyncio.gather(
        *(ask(replica.api, "POST", V1, body, tenant="me") for replica in (a, b))
    )
    assert sorted(status for status, _ in answers) == [200, 400]
    [refused] = [answer for status, answer in answers if status == 400]
    assert refused["error"]["param"] == "request_id"
    for replica in (a, b):
        assert (await ask(replica.api, "GET", f"{V1}/resp_mine", tenant="me"))[0] == 200


async def test_a_stream_whose_id_another_replica_has_taken_fails(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    body = {"model": "fake", "input": "Hi", "request_id": "mine", "stream": True}
    stream = FakeStream()
    task = asyncio.ensure_future(a.api.call("POST", V1, body, stream))
    await a.api.backend.received.wait()
    resume(b.api)
    assert (await ask(b.api, "POST", V1, {**body, "stream": False}))[0] == 200
    resume(a.api)
    await task
    assert stream.events[-2]["type"] == "response.failed"
    assert "resp_mine" in stream.events[-2]["response"]["error"]["message"]


async def test_a_conversation_gets_the_turns_of_both_replicas(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    _, conversation = await ask(a.api, "POST", "/v1/conversations", {})
    id = conversation["id"]
    for replica in (a, b):
        resume(replica.api)
    body = {"model": "fake", "conversation": id}
    answers = await asyncio.gather(
        *(
            ask(replica.api, "POST", V1, {**body, "input": f"{number}"})
            for number in range(5)
            for replica in (a, b)
        )
    )
    assert [status for status, _ in answers] == [200] * 10
    _, page = await ask(b.api, "GET", f"/v1/conversations/{id}/items?order=asc&limit=100")
    assert [item["role"] for item in page["data"]] == ["user", "assistant"] * 10
    assert len({item["id"] for item in page["data"]}) == 20


# A server that does not share its state.


CUT = StoredResponse(
    "r",
    orjson.dumps({"id": "r", "background": True}),
    progress=ResponseProgress.RUNNING,
    resumption=Resumption("m", b"job"),
)


async def cut_off(tmp_path) -> StateStore:
    """Returns the state of the only server, which was killed while a response ran."""
    store = open_at(tmp_path)
    await store.run(Operations.add_response, "t", CUT)
    await store.close()
    return open_at(tmp_path)


def fail_once(store: StateStore, operation: Callable[..., Any]) -> None:
    """Makes an operation fail once with a disk error."""
    is_first = True

    async def fail(*args: object) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            raise StateFailed("full")
        return await run(*args)

    run = replace_operation(store, operation, fail)


class Adds:
    """Stands for a `Resumer` and records the responses to resume."""

    def __init__(self) -> None:
        self.added: asyncio.Queue[list[OwnedResponse]] = asyncio.Queue()

    def add(self, responses: Iterable[OwnedResponse]) -> None:
        self.added.put_nowait(list(responses))

    async def close(self) -> None:
        pass


async def test_a_server_alone_looks_for_what_was_cut_off_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(resumption, "_ALONE_INTERVAL", 0.0)
    store, resumer = await cut_off(tmp_path), Adds()
    fail_once(store, Operations.renew_leases)
    keeper = LeaseKeeper(store, BackgroundRuns(1), resumer)  # type: ignore[arg-type]
    keeper.start()
    async with asyncio.timeout(60):
        for _ in range(2):
            assert await resumer.added.get() == [
                OwnedResponse(ResponseKey("t", "r"), False, "m", 0)
            ]
    await keeper.close()
    await store.close()


async def test_a_server_alone_hears_at_once_that_one_is_cancelled(tmp_path):
    store, resumer = await cut_off(tmp_path), Adds()
    keeper = LeaseKeeper(store, BackgroundRuns(1), resumer)  # type: ignore[arg-type]
    keeper.start()
    async with asyncio.timeout(60):
        await resumer.added.get()
        assert await store.request_cancel("t", "r")
        assert await resumer.added.get() == [OwnedResponse(ResponseKey("t", "r"), True, "m", 0)]
    await keeper.close()
    await store.close()


async def test_a_server_alone_leaves_what_runs(tmp_path, monkeypatch):
    store, resumer, runs = await cut_off(tmp_path), Adds(), BackgroundRuns(1)
    monkeypatch.setattr(runs, "find", lambda tenant, id: (tenant, id) == ("t", "r") or None)
    keeper = LeaseKeeper(store, runs, resumer)  # type: ignore[arg-type]
    keeper.start()
    async with asyncio.timeout(60):
        assert await resumer.added.get() == []
    await keeper.close()
    await store.close()


async def test_a_server_that_does_not_resume_has_what_was_cut_off_fail(tmp_path):
    store = await cut_off(tmp_path)
    keeper = LeaseKeeper(store, BackgroundRuns(1))
    keeper.start()
    assert keeper._task is not None
    await keeper._task
    assert (
        await store.run(Operations.find_response, "t", "r")
    ).progress is ResponseProgress.INTERRUPTED
    await keeper.close()
    await store.close()


async def test_failed_interruption_is_logged(tmp_path, caplog):
    store = await cut_off(tmp_path)
    fail_once(store, Operations.interrupt_expired)
    keeper = LeaseKeeper(store, BackgroundRuns(1))
    keeper.start()
    assert keeper._task is not None
    await keeper._task
    assert "still count as running: full" in caplog.text
    await store.close()
