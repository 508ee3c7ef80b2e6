"""Streams that are followed again, from where they were left."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.responses.conftest import ask, paused, resume
from tests.api.responses.events import check
from tests.api.responses.test_background import BODY, V1, V3, replayed, start, wait_for
from tests.fakes import FakeStream


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
    status, body = await ask(api, "POST", made_at, BODY)
    assert status == 200
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


@pytest.mark.parametrize("value", ["true", "True", "1"])
async def test_ways_to_ask_for_a_stream(make, value):
    api = make()
    id = await start(api)
    await wait_for(api, id, "completed")
    stream = FakeStream()
    await api.call("GET", f"{V1}/{id}?stream={value}", None, stream)
    check(stream.events)
    for no in ("false", "False", "0"):
        assert (await ask(api, "GET", f"{V1}/{id}?stream={no}"))[1]["id"] == id


async def test_only_background_responses_are_streamed_again(make):
    api = make()
    _, body = await ask(api, "POST", V1, {"model": "fake", "input": "Hi"})
    status, answer = await ask(api, "GET", f"{V1}/{body['id']}?stream=true")
    assert (status, answer["error"]["param"]) == (400, "stream")
    assert (await ask(api, "GET", f"{V1}/resp_none?stream=true"))[0] == 404
