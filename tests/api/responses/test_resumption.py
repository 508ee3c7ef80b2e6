"""Tests of `fastovms/parts/responses/resumption.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastovms.errors import BackendUnavailable
from fastovms.parts.responses.background import BackgroundRun
from fastovms.parts.responses.output import ResponseStatus, failed
from fastovms.parts.responses.resumption import MAX_ATTEMPTS, NotResumable, RunRestorer
from fastovms.state.operations import Operations
from fastovms.state.store import EventPack, InterruptedResponse, ResponseKey
from tests.api.responses.conftest import (
    BACKGROUND,
    TOOL,
    V1,
    V3,
    Replica,
    ask,
    get,
    replayed,
    resume,
    wait_for,
)
from tests.api.responses.events import check
from tests.api.responses.taking_over import (
    Holder,
    change_files,
    cut_after,
    renew_until,
    settle,
    start_response,
    take_over,
)
from tests.fakes import FakeStream
from tests.replicas import LEASE, replace_operation

# Responses of a lost replica continue elsewhere without a visible difference.


THOUGHTS = "<think>Let me see.</think>It is sunny. And warm."
CALL = (
    'I ask.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
SHELL = (
    'I run.<tool_call>\n{"name": "shell", "arguments": {"commands": ["ls", "pwd"]}}\n</tool_call>'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("Hello, world!", {}),
    "thoughts": (THOUGHTS, {}),
    "calls": (CALL, {"tools": [TOOL]}),
    "shell": (SHELL, {"tools": [TOOL, {"type": "shell"}]}),
    "stop string": ("Hello, wonderful world!", {"stop": ["wonder"]}),
    "cut": ("Hello, world!", {"max_output_tokens": 9}),
    "conversation": ("Hello!", {"conversation": True}),
}


def comparable(events: list[Any]) -> list[Any]:
    """Returns events without the ids that differ between responses."""
    return [
        {
            name: value
            for name, value in event.items()
            if name not in ("item_id", "item", "response")
        }
        for event in events
        if event != "[DONE]"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("case", CASES)
async def test_resumed_response_has_the_same_events(make_replicas, case, part):
    script, fields = CASES[case]
    path = V3 if case == "cut" else V1
    (a, b), clock = make_replicas("a", "b", resumes=True, script=script)
    body = {**BACKGROUND, **fields}
    whole_id = await start_response(a.api, body, path)
    resume(a.api)
    whole = await wait_for(a.api, whole_id, "completed", "incomplete")
    expected = await replayed(a.api, whole_id, path)
    resume(a.api, 0)
    id = await start_response(a.api, body, path)
    await cut_after(a, [id], int(part * len(script)))
    follower = asyncio.ensure_future(replayed(b.api, id, path, starting_after=2))
    resume(b.api)
    await take_over(b, clock)
    answer = await wait_for(b.api, id, "completed", "incomplete")
    assert answer["usage"] == whole["usage"]
    events = await replayed(b.api, id, path)
    check(list(events))
    assert comparable(events) == comparable(expected)
    assert await follower == events[3:]
    for request in b.api.backend.submitted:  # none where all had been said
        assert script.encode().startswith(bytes(request.generated_token_ids))


@pytest.mark.slow
async def test_one_that_was_only_slow_stops(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BACKGROUND)
    await cut_after(a, [id], 3)
    follower = asyncio.ensure_future(ask_stream(a.api, id))
    await take_over(b, clock)
    a.store.error = None
    await a.renew()
    await a.runs.drain(60)
    assert a.api.backend.aborted
    assert (await follower).aborted, "its client asks again, and is told the rest"
    resume(b.api)
    answer = await wait_for(b.api, id, "completed")
    assert await get(a.api, id) == answer


async def ask_stream(api, id: str):
    stream = FakeStream()
    await api.call("GET", f"{V1}/{id}?stream=true", None, stream)
    return stream


@pytest.mark.slow
async def test_a_server_that_ends_leaves_its_responses_to_others(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BACKGROUND)
    resume(a.api, 3)
    await wait_for(a.api, id, "in_progress")
    await a.api.backend.close()
    await a.runs.drain(60)
    a.keeper.start()
    await a.keeper.close()
    resume(b.api)
    await take_over(b, clock)
    assert (await wait_for(b.api, id, "completed"))["output"][0]["content"][0]["text"] == "Hello!"


@pytest.mark.slow
async def test_a_cancel_waits_for_who_goes_on(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BACKGROUND)
    await cut_after(a, [id], 3)
    cancel = asyncio.ensure_future(ask(b.api, "POST", f"{V1}/{id}/cancel"))
    await asyncio.sleep(0.01)
    await take_over(b, clock)
    status, body = await renew_until(b, cancel)
    assert (status, body["status"]) == (200, "cancelled")


async def num_attempts(replica: Replica) -> dict[str, int]:
    """Returns by id the number of failed attempts to resume the responses of a replica."""
    return {
        one.key.id: one.num_attempts for one in await replica.store.run(Operations.renew_leases)
    }


async def tried(replica: Replica, *ids: str) -> None:
    """Records an attempt to resume each response, during which the process ended."""
    await replica.store.run(Operations.take_over, replica.resumer.models(), len(ids))
    for id in ids:
        assert await replica.store.run(Operations.begin_attempt, "", id)


async def cut_some(replica: Replica, count: int) -> list[str]:
    """Returns responses whose replica disappears after the first events of each."""
    ids = [await start_response(replica.api, BACKGROUND) for _ in range(count)]
    await cut_after(replica, ids, 3)
    return ids


def running(replica: Replica, ids: list[str]) -> list[bool]:
    return [replica.runs.find("", id) is not None for id in ids]


@pytest.mark.slow
async def test_one_is_tried_at_a_time(make_replicas):
    """The next response waits until the first one has made progress: until then, no other response
    can be the cause of a crash."""
    (a, b), clock = make_replicas("a", "b", resumes=True)
    ids = await cut_some(a, 3)
    may_write = asyncio.Event()

    async def add_later(*pack: Any) -> bool:
        await may_write.wait()
        return await add_events(*pack)

    add_events = replace_operation(b.store, Operations.add_events, add_later)
    await take_over(b, clock)
    await b.api.backend.received.wait()
    resume(b.api, 2)
    await settle()
    assert running(b, ids) == [True, False, False]
    assert await num_attempts(b) == {ids[0]: 1, ids[1]: 0, ids[2]: 0}
    may_write.set()
    resume(b.api)
    for id in ids:
        await wait_for(b.api, id, "completed")


@pytest.mark.slow
async def test_one_that_waits_is_cancelled_at_once(make_replicas):
    """A cancelled response waits neither for its turn nor for its model."""
    (a, b), clock = make_replicas("a", "b", resumes=True)
    ids = await cut_some(a, 2)
    await take_over(b, clock)
    await b.api.backend.received.wait()
    cancel = asyncio.ensure_future(ask(b.api, "POST", f"{V1}/{ids[1]}/cancel"))
    status, body = await renew_until(b, cancel)
    assert (status, body["status"], body["id"]) == (200, "cancelled", ids[1])
    events = await replayed(b.api, ids[1])
    assert events[-2]["type"] == "response.incomplete"
    assert running(b, ids) == [True, False]
    resume(b.api)
    await wait_for(b.api, ids[0], "completed")


@pytest.mark.slow
async def test_response_that_failed_to_resume_is_tried_last(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    ids = await cut_some(a, 2)
    clock.now += LEASE + 1
    await tried(b, *ids)
    await b.store.run(Operations.begin_attempt, "", ids[0])
    await b.renew()
    await b.api.backend.received.wait()
    assert running(b, ids) == [False, True]
    assert await num_attempts(b) == {ids[0]: 2, ids[1]: 2}
    resume(b.api)
    for id in ids:
        await wait_for(b.api, id, "completed")


@pytest.mark.slow
async def test_its_model_is_loaded_first(make_replicas):
    """An attempt counts only after the model was loaded."""
    (a, b), clock = make_replicas("a", "b", resumes=True)
    for replica in (a, b):
        change_files(replica, "f")
    id = await start_response(a.api, BACKGROUND)
    await cut_after(a, [id], 3)
    holder = Holder(b)
    await take_over(b, clock)
    await settle()
    assert await num_attempts(b) == {id: 0}
    holder.failure = BackendUnavailable("no memory")
    holder.may_load.set()
    await settle()
    assert await num_attempts(b) == {id: 0}
    holder.failure = None
    await b.renew()
    await b.api.backend.received.wait()
    assert holder.num_uses == 1
    resume(b.api)
    assert (await wait_for(b.api, id, "completed"))["output"][0]["content"][0]["text"] == "Hello!"
    await settle()
    assert holder.num_uses == 0


@pytest.mark.slow
async def test_response_that_ends_the_server_each_time_fails(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BACKGROUND)
    await cut_after(a, [id], 3)
    clock.now += LEASE + 1
    for _ in range(MAX_ATTEMPTS):
        await tried(b, id)
    await take_over(b, clock)
    body = await wait_for(b.api, id, "failed")
    assert "3 times without success" in body["error"]["message"]
    events = await replayed(b.api, id)
    assert [event["type"] for event in events[-3:-1]] == ["error", "response.failed"]
    assert events[-2]["response"] == body
    assert not b.api.backend.submitted


@pytest.mark.slow
async def test_a_model_that_has_changed(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BACKGROUND)
    await cut_after(a, [id], 3)
    change_files(b, "changed")
    await take_over(b, clock)
    assert (await get(b.api, id))["status"] in ("queued", "in_progress"), "others may serve it"
    b.resumer.add(await b.store.run(Operations.take_over, None, 1))
    body = await wait_for(b.api, id, "failed")
    assert body["error"]["message"] == "the model fake has changed since the response was begun"


# A run is restored from the store, or its response fails with the reason.


async def cut(
    make_replicas, path: str = V1
) -> tuple[RunRestorer, ResponseKey, InterruptedResponse, Any]:
    """Returns a response with three known tokens that another replica owns."""
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BACKGROUND, path)
    await cut_after(a, [id], 3)
    b.keeper._resumer = None
    await take_over(b, clock)
    [response] = await b.store.run(Operations.take_over, b.resumer.models(), 1)
    assert response.model == b.resumer.models()[0]
    found = await b.store.run(Operations.begin_attempt, *response.key)
    assert found is not None
    return RunRestorer(b.api.context, b.store), response.key, found, b.api


async def restored(
    restorer: RunRestorer, key: ResponseKey, found: InterruptedResponse
) -> BackgroundRun:
    async with restorer.held(restorer.models()[0]) as model:
        return await restorer.restored(key, found, model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found._replace(job=b"{}"), "written by another version of the server"),
        (
            lambda found: found._replace(packs=[found.packs[0]._replace(outputs=b"other")]),
            "the stored output of the model is corrupt",
        ),
        (
            lambda found: found._replace(packs=[EventPack(3, found.packs[0].data, None)]),
            "there are no events from 0 to 3",
        ),
    ],
)
async def test_response_with_damaged_state_cannot_be_resumed(make_replicas, change, message):
    restorer, key, found, _ = await cut(make_replicas)
    with pytest.raises(NotResumable, match=message):
        await restored(restorer, key, change(found))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("0 fake", "the model fake has changed since the response was begun"),
        ("0 gone", "the model gone is no longer served since the response was begun"),
    ],
)
async def test_there_is_no_such_model_any_more(make_api, make_state, key, message):
    api = make_api()
    with pytest.raises(NotResumable, match=message):
        async with RunRestorer(api.context, make_state().store).held(key):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize(
    ("status", "last"), [(failed("gone"), "failed"), (ResponseStatus("cancelled"), "incomplete")]
)
async def test_ended_response_has_the_output_so_far(make_replicas, path, status, last):
    restorer, key, found, api = await cut(make_replicas, path)
    late = EventPack(found.packs[-1].first + 99, found.packs[-1].data)
    assert await restorer._store.run(Operations.add_events, *key, late), (
        "damaged: others are missing before it"
    )
    await restorer.end(key, status)
    body = await get(api, key.id)
    assert (body["status"], body["error"]) == (status.name, status.error)
    events = await replayed(api, key.id, path)
    assert [event["sequence_number"] for event in events[:-1]] == list(range(len(events) - 1))
    assert events[-2]["type"] == f"response.{last}"
    assert "".join(event.get("delta", "") for event in events[:-1]) == "Hel"
