"""Responses whose replica is gone go on elsewhere as if nothing had happened."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fastovms.api.responses.resumption.resumer import MAX_ATTEMPTS
from fastovms.errors import Overloaded, StateFailed
from fastovms.state.store import ResponseKey
from tests.api.responses.conftest import TOOL, V1, V3, Replica, ask, resume
from tests.api.responses.events import check
from tests.api.responses.test_background import BODY, get, replayed, wait_for
from tests.fakes import FakeStream
from tests.replicas import LEASE

THOUGHTS = "<think>Let me see.</think>It is sunny. And warm."
CALL = (
    'I ask.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("Hello, world!", {}),
    "thoughts": (THOUGHTS, {}),
    "calls": (CALL, {"tools": [TOOL]}),
    "stop string": ("Hello, wonderful world!", {"stop": ["wonder"]}),
    "cut": ("Hello, world!", {"max_output_tokens": 9}),
    "conversation": ("Hello!", {"conversation": True}),
}


async def start(api, body: dict[str, Any], path: str = V1) -> str:
    if body.get("conversation"):
        _, conversation = await ask(api, "POST", "/v1/conversations", {})
        body = {**body, "conversation": conversation["id"]}
    status, answer = await ask(api, "POST", path, body)
    assert (status, answer["status"]) == (200, "queued")
    return answer["id"]


async def cut_after(replica: Replica, id: str, num_steps: int) -> None:
    """Has a replica make so many steps, keep what came of them, and lose its database."""
    resume(replica.api, num_steps)
    run = replica.runs.find("", id)
    async with asyncio.timeout(10):
        while replica.api.steps_left > 0 or (run is not None and run._writer._unsent):
            await asyncio.sleep(0.001)
            if run is None or run.has_ended:
                break
    replica.store.error = StateFailed("gone")


async def take_over(replica: Replica, clock) -> None:
    """Lets the lease of a replica that is gone expire."""
    for _ in range(int(LEASE) + 2):
        await replica.renew()
        clock.now += 1
    await replica.renew()


def comparable(events: list[Any]) -> list[Any]:
    """Events without the ids that each response has of its own."""
    return [
        {
            name: value
            for name, value in event.items()
            if name not in ("item_id", "item", "response")
        }
        for event in events
        if event != "[DONE]"
    ]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("case", CASES)
async def test_it_goes_on_as_if_nothing_had_happened(make_replicas, case, part):
    script, fields = CASES[case]
    path = V3 if case == "cut" else V1
    (a, b), clock = make_replicas("a", "b", resumes=True, script=script)
    body = {**BODY, **fields}
    whole_id = await start(a.api, body, path)
    resume(a.api)
    whole = await wait_for(a.api, whole_id, "completed", "incomplete")
    expected = await replayed(a.api, whole_id, path)
    resume(a.api, 0)
    id = await start(a.api, body, path)
    await cut_after(a, id, int(part * len(script)))
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


async def test_one_that_was_only_slow_stops(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start(a.api, BODY)
    await cut_after(a, id, 3)
    follower = asyncio.ensure_future(ask_stream(a.api, id))
    await take_over(b, clock)
    a.store.error = None
    await a.renew()
    await a.runs.drain(10)
    assert a.api.backend.aborted
    assert (await follower).aborted, "its client asks again, and is told the rest"
    resume(b.api)
    answer = await wait_for(b.api, id, "completed")
    assert await get(a.api, id) == answer


async def ask_stream(api, id: str):
    stream = FakeStream()
    await api.call("GET", f"{V1}/{id}?stream=true", None, stream)
    return stream


async def test_a_server_that_ends_leaves_its_responses_to_others(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start(a.api, BODY)
    resume(a.api, 3)
    await wait_for(a.api, id, "in_progress")
    await a.api.backend.close()
    await a.runs.drain(10)
    a.keeper.start()
    await a.keeper.close()
    resume(b.api)
    await take_over(b, clock)
    assert (await wait_for(b.api, id, "completed"))["output"][0]["content"][0]["text"] == "Hello!"


async def test_a_cancel_waits_for_who_goes_on(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start(a.api, BODY)
    await cut_after(a, id, 3)
    cancel = asyncio.ensure_future(ask(b.api, "POST", f"{V1}/{id}/cancel"))
    await asyncio.sleep(0.01)
    await take_over(b, clock)
    status, body = await cancel
    assert (status, body["status"]) == (200, "cancelled")


async def test_what_ends_the_server_each_time_fails(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start(a.api, BODY)
    await cut_after(a, id, 3)
    for _ in range(MAX_ATTEMPTS):
        clock.now += LEASE + 1
        await b.store.take_over(b.resumer.models(), 1)
        assert await b.store.begin_attempt("", id)
    await take_over(b, clock)
    body = await wait_for(b.api, id, "failed")
    assert "3 times in vain" in body["error"]["message"]
    events = await replayed(b.api, id)
    assert [event["type"] for event in events[-3:-1]] == ["error", "response.failed"]
    assert events[-2]["response"] == body
    assert not b.api.backend.submitted


async def test_a_model_that_has_changed(make_replicas, monkeypatch):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start(a.api, BODY)
    await cut_after(a, id, 3)
    monkeypatch.setattr(
        b.api.backend, "_model", replace(b.api.backend.model, fingerprint="changed")
    )
    await take_over(b, clock)
    assert (await get(b.api, id))["status"] in ("queued", "in_progress"), "others may serve it"
    await b.store.take_over(None, 1)
    b.resumer.add([ResponseKey("", id)])
    body = await wait_for(b.api, id, "failed")
    assert body["error"]["message"] == "the model fake has changed since the response was begun"


async def test_it_waits_for_room_in_the_queue(make_replicas, monkeypatch):
    monkeypatch.setattr("fastovms.api.responses.resumption.resumer._RETRY", 0.001)
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start(a.api, BODY)
    await cut_after(a, id, 3)
    b.api.backend.submit_error = Overloaded("full")
    resume(b.api)
    await take_over(b, clock)
    await asyncio.sleep(0.01)
    b.api.backend.submit_error = None
    assert (await wait_for(b.api, id, "completed"))["output"][0]["content"][0]["text"] == "Hello!"
