"""Tests of streams of responses that run on another replica."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from fastovms.api.dialect import frame
from fastovms.errors import StateFailed
from fastovms.parts.responses import background
from fastovms.parts.responses.events import pack_frames
from fastovms.state.operations import Operations
from fastovms.state.store import EventPack, ResponseKey, ResponseProgress, StoredResponse
from tests.api.responses.conftest import (
    BACKGROUND,
    V1,
    V3,
    ask,
    paused,
    replayed,
    resume,
    start,
    wait_for,
)
from tests.api.responses.events import check
from tests.api.responses.taking_over import running_response
from tests.fakes import FakeStream


@pytest.mark.slow
@pytest.mark.parametrize("after", [None, 0, 3, 100])
@pytest.mark.parametrize("path", [V1, V3])
async def test_a_response_is_followed_through_another_replica(make_replicas, after, path):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    query = {} if after is None else {"starting_after": after}
    followers = [
        asyncio.ensure_future(replayed(replica.api, id, path, **query)) for replica in (a, b)
    ]
    for _ in range(5):
        resume(a.api, 1)
        await asyncio.sleep(0.005)
    resume(a.api)
    here, elsewhere = await asyncio.gather(*followers)
    assert elsewhere == here
    assert await replayed(b.api, id, path, **query) == here
    if after is None:
        check(here)


@pytest.mark.slow
async def test_events_are_sent_as_they_come(make_replicas, monkeypatch):
    monkeypatch.setattr(background, "LOOK_AGAIN", 3600.0)
    (a, b), _ = make_replicas("a", "b")
    id = await start(a.api)
    stream = FakeStream()
    follower = asyncio.ensure_future(b.api.call("GET", f"{V1}/{id}?stream=true", None, stream))
    for text in ("H", "e", "l"):
        resume(a.api, 1)
        async with asyncio.timeout(60):
            while not stream.writes or f'"delta":"{text}"' not in str(stream.writes[-1]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    resume(a.api)
    await follower
    check(stream.events)


@pytest.mark.slow
async def test_a_notification_that_is_missed_costs_no_event(make_replicas, monkeypatch):
    monkeypatch.setattr(background, "LOOK_AGAIN", 0.01)
    (a, b), _ = make_replicas("a", "b")
    b.store.deafen()
    id = await running_response(a)
    follower = asyncio.ensure_future(replayed(b.api, id))
    await asyncio.sleep(0.02)
    resume(a.api)
    assert await follower == await replayed(a.api, id)


@pytest.mark.slow
async def test_a_store_that_is_gone_for_a_while_costs_no_event(make_replicas, monkeypatch):
    monkeypatch.setattr(background, "LOOK_AGAIN", 0.01)
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    stream = FakeStream()
    follower = asyncio.ensure_future(b.api.call("GET", f"{V1}/{id}?stream=true", None, stream))
    await stream.first_write.wait()
    b.store.error = StateFailed("gone")
    resume(a.api)
    await asyncio.sleep(0.03)
    assert not follower.done()
    b.store.error = None
    await follower
    assert stream.events == await replayed(a.api, id)


async def test_follower_of_a_deleted_response_gets_a_failure(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    stream = FakeStream()
    follower = asyncio.ensure_future(b.api.call("GET", f"{V1}/{id}?stream=true", None, stream))
    await stream.first_write.wait()
    await a.store.run(Operations.delete_response, "", id)
    await follower
    events = stream.events
    assert [event["type"] for event in events[-3:-1]] == ["error", "response.failed"]
    assert events[-2]["response"]["error"]["message"] == "the response was deleted"


@pytest.mark.slow
async def test_cancelled_follower_leaves_no_task_or_watcher(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    with b.store.watch_cancels():
        await asyncio.sleep(0)  # what listens for all
    before = asyncio.all_tasks()
    stream = FakeStream()
    follower = asyncio.ensure_future(b.api.call("GET", f"{V1}/{id}?stream=true", None, stream))
    await stream.first_write.wait()
    follower.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower
    assert asyncio.all_tasks() == before
    assert not b.store._watchers._watches


async def test_stored_events_are_replayed_after_a_restart(make, make_state):
    state = make_state()
    done = make(state=state)
    kept = await wait_for(done, await start(done), "completed")
    whole = await replayed(done, kept["id"])
    lost = orjson.dumps({name: value for name, value in kept.items() if name != "output"})
    running = StoredResponse("resp_lost", lost, progress=ResponseProgress.RUNNING)
    await state.store.run(Operations.add_response, "", running)
    frames = [frame(orjson.dumps(event), event["type"]) for event in whole[:5]]
    await state.store.run(Operations.add_events, "", "resp_lost", EventPack(0, pack_frames(frames)))
    await state.store.run(Operations.give_up, [ResponseKey("", "resp_lost")])
    events = await replayed(done, "resp_lost")
    assert events[:5] == whole[:5]
    assert [event["type"] for event in events[5:-1]] == ["error", "response.failed"]
    assert [event["sequence_number"] for event in events[:-1]] == list(range(7))
    assert await replayed(done, "resp_lost", starting_after=2) == events[3:]


async def test_others_do_not_follow_it(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    for method, place in (
        ("GET", id),
        ("GET", f"{id}?stream=true"),
        ("POST", f"{id}/cancel"),
        ("DELETE", id),
    ):
        assert (await ask(b.api, method, f"{V1}/{place}", tenant="other"))[0] == 404
    assert not a.api.backend.aborted


@pytest.mark.parametrize("after", [0, 1, 5, 11, 12, 13, 14, 100])
async def test_a_stream_goes_on_where_it_was_left(make, after):
    api = make()
    id = await start(api)
    await wait_for(api, id, "completed")
    whole = await replayed(api, id)
    rest = await replayed(api, id, starting_after=after)
    assert rest == (whole[after + 1 :] or ["[DONE]"])
    named = await replayed(api, id, "/v3/responses", starting_after=after)
    assert named == rest


@pytest.mark.slow
async def test_the_events_survive_a_restart(make, make_state):
    state = make_state()
    api = make("Hello, world! " * 50, state=state)
    id = await start(api)
    await wait_for(api, id, "completed")
    events = await replayed(api, id)
    assert await replayed(make(state=state), id) == events
    check(events)


@pytest.mark.parametrize("made_at", [V1, V3])
@pytest.mark.parametrize("path", [V1, V3])
async def test_frames_are_in_the_form_of_whoever_asks(make, made_at, path):
    api = make()
    body = await api.answer(made_at, BACKGROUND)
    await wait_for(api, body["id"], "completed")
    stream = FakeStream()
    await api.call("GET", f"{path}/{body['id']}?stream=true", None, stream)
    lines = b"".join(stream.writes).splitlines()
    names = [line.removeprefix(b"event: ").decode() for line in lines if line[:6] == b"event:"]
    types = [event["type"] for event in stream.events[:-1]]
    assert names == (types if path == V1 else [])


async def test_several_clients_follow_one_stream(make):
    api = paused(make)
    id = await start(api)
    followers = [asyncio.ensure_future(replayed(api, id)) for _ in range(3)]
    later = asyncio.ensure_future(replayed(api, id, starting_after=2))
    await asyncio.sleep(0)
    resume(api)
    first, *others = await asyncio.gather(*followers)
    assert others == [first, first]
    assert await later == first[3:]
    check(first)


@pytest.mark.slow
async def test_a_slow_follower_takes_what_it_can(make):
    api = make("Hello, world! " * 100)
    id = await start(api)
    await wait_for(api, id, "completed")
    stream = FakeStream()
    send = stream.send

    def pause(data: bytes) -> None:
        send(data)
        if not stream.closed:
            stream.writable = False
            asyncio.get_running_loop().call_later(0.001, go_on)

    def go_on() -> None:
        stream.writable = True
        if stream.on_writable is not None:
            stream.on_writable()

    stream.send = pause
    await api.call("GET", f"{V1}/{id}?stream=true", None, stream)
    assert len(stream.writes) > 2
    check(stream.events)


async def test_only_background_responses_are_streamed_again(make):
    api = make()
    _, body = await ask(api, "POST", V1, {"model": "fake", "input": "Hi"})
    status, answer = await ask(api, "GET", f"{V1}/{body['id']}?stream=true")
    assert (status, answer["error"]["param"]) == (400, "stream")
    assert (await ask(api, "GET", f"{V1}/resp_none?stream=true"))[0] == 404
