"""Tests of `fastovms/parts/responses/resumption.py`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from fastovms.config import MediaConfig
from fastovms.errors import BackendUnavailable, Overloaded, StateFailed
from fastovms.params import LOWEST_PRIORITY
from fastovms.parts.media.files import Documents
from fastovms.parts.responses import resumption
from fastovms.parts.responses.background import BackgroundRun, BackgroundRuns
from fastovms.parts.responses.output import ResponseStatus, failed
from fastovms.parts.responses.resumption import MAX_ATTEMPTS, CannotGoOn, LeaseKeeper, RunRestorer
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import (
    CutResponse,
    EventPack,
    OwnedResponse,
    ResponseKey,
    ResponseProgress,
    Resumption,
    StoredResponse,
)
from tests.api.responses.conftest import TOOL, V1, V3, Replica, ask, resume
from tests.api.responses.events import check
from tests.api.responses.test_background import BODY, get, replayed, start, wait_for
from tests.fakes import FakeStream
from tests.replicas import LEASE, replace_operation
from tests.state.sqlite.test_location import open_at

# Responses whose replica is gone go on elsewhere as if nothing had happened.


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


WINDOW = {"background_options": {"completion_window": "8h"}}


async def start_response(api, body: dict[str, Any], path: str = V1) -> str:
    if body.get("conversation") is True:
        _, conversation = await ask(api, "POST", "/v1/conversations", {})
        body = {**body, "conversation": conversation["id"]}
    status, answer = await ask(api, "POST", path, body)
    assert (status, answer["status"]) == (200, "queued")
    return answer["id"]


async def cut_after(replica: Replica, ids: Sequence[str], num_steps: int) -> None:
    """Has a replica make so many steps, keep what came of them for each response, and lose its
    database."""
    resume(replica.api, num_steps)
    for id in ids:
        run = replica.runs.find("", id)
        async with asyncio.timeout(10):
            while replica.api.steps_left > 0 or (run is not None and run._writer._is_behind):
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


async def renew_until(replica: Replica, asking: asyncio.Future[Any]) -> Any:
    """Renews the leases of a replica until a request has its answer, which it returns."""
    async with asyncio.timeout(60):
        while not asking.done():
            await replica.renew()
    return await asking


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


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("case", CASES)
async def test_it_goes_on_as_if_nothing_had_happened(make_replicas, case, part):
    script, fields = CASES[case]
    path = V3 if case == "cut" else V1
    (a, b), clock = make_replicas("a", "b", resumes=True, script=script)
    body = {**BODY, **fields}
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
@pytest.mark.parametrize("first", [8, 20, 45])
@pytest.mark.parametrize("second", [2, 30])
async def test_it_is_cut_twice_where_the_model_makes_no_event(make_replicas, first, second):
    (a, b, c), clock = make_replicas("a", "b", "c", resumes=True, script=CALL)
    body = {**BODY, "tools": [TOOL]}
    whole_id = await start_response(a.api, body)
    resume(a.api)
    whole = await wait_for(a.api, whole_id, "completed")
    expected = await replayed(a.api, whole_id)
    resume(a.api, 0)
    id = await start_response(a.api, body)
    await cut_after(a, [id], first)
    await take_over(b, clock)
    await b.api.backend.received.wait()
    await cut_after(b, [id], second)
    await take_over(c, clock)
    await c.api.backend.received.wait()
    resume(c.api)
    answer = await wait_for(c.api, id, "completed")
    assert answer["usage"] == whole["usage"]
    events = await replayed(c.api, id)
    check(list(events))
    assert comparable(events) == comparable(expected)
    said = [replica.api.backend.submitted[-1].generated_token_ids for replica in (b, c)]
    assert list(map(len, said)) == [first, first + second]


@pytest.mark.slow
async def test_one_that_was_only_slow_stops(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BODY)
    await cut_after(a, [id], 3)
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


@pytest.mark.slow
async def test_a_server_that_ends_leaves_its_responses_to_others(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BODY)
    resume(a.api, 3)
    await wait_for(a.api, id, "in_progress")
    await a.api.backend.close()
    await a.runs.drain(10)
    a.keeper.start()
    await a.keeper.close()
    resume(b.api)
    await take_over(b, clock)
    assert (await wait_for(b.api, id, "completed"))["output"][0]["content"][0]["text"] == "Hello!"


@pytest.mark.slow
async def test_a_cancel_waits_for_who_goes_on(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BODY)
    await cut_after(a, [id], 3)
    cancel = asyncio.ensure_future(ask(b.api, "POST", f"{V1}/{id}/cancel"))
    await asyncio.sleep(0.01)
    await take_over(b, clock)
    status, body = await renew_until(b, cancel)
    assert (status, body["status"]) == (200, "cancelled")


async def num_attempts(replica: Replica) -> dict[str, int]:
    """By id, how often each response of a replica was tried in vain."""
    return {
        one.key.id: one.num_attempts for one in await replica.store.run(Operations.renew_leases)
    }


async def tried(replica: Replica, *ids: str) -> None:
    """Takes note of an attempt with each response, in whose course the process has ended."""
    await replica.store.run(Operations.take_over, replica.resumer.models(), len(ids))
    for id in ids:
        assert await replica.store.run(Operations.begin_attempt, "", id)


async def cut_some(replica: Replica, count: int) -> list[str]:
    """Responses whose replica ends when it has told something of each."""
    ids = [await start_response(replica.api, BODY) for _ in range(count)]
    await cut_after(replica, ids, 3)
    return ids


def running(replica: Replica, ids: list[str]) -> list[bool]:
    return [replica.runs.find("", id) is not None for id in ids]


@pytest.mark.slow
async def test_one_is_tried_at_a_time(make_replicas):
    """The next one waits until more is kept of it: until then, no other can be the cause of what
    ends the process."""
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
    """It needs neither its turn nor its model."""
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


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.slow
async def test_what_was_tried_in_vain_comes_last(make_replicas):
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


def change_files(replica: Replica, fingerprint: str) -> None:
    """Has the model of a replica be one of other files."""
    backend = replica.api.backend
    backend._model = replace(backend.model, fingerprint=fingerprint)
    [known] = replica.api.context.models.known
    known.fingerprint = fingerprint


class Holder:
    """Loads the model of a replica when a test says so.

    Attributes:
        failure: why it cannot be loaded.
        num_uses: how often it is in use.
    """

    def __init__(self, replica: Replica) -> None:
        models = replica.api.context.models
        [self._known] = models.known
        self._served, self._known.served = self._known.served, None
        self.may_load = asyncio.Event()
        self.failure: BackendUnavailable | None = None
        self.num_uses = 0
        models.holder = self  # type: ignore[assignment]

    def try_hold(self, name: str) -> None:
        return None

    async def hold(self, name: str, client: str = "") -> Callable[[], None]:
        assert name == self._known.name
        await self.may_load.wait()
        if self.failure is not None:
            raise self.failure
        self._known.served = self._served
        self.num_uses += 1
        return self._release

    def _release(self) -> None:
        self.num_uses -= 1


@pytest.mark.slow
async def test_its_model_is_loaded_first(make_replicas):
    """No attempt counts before the model is there."""
    (a, b), clock = make_replicas("a", "b", resumes=True)
    for replica in (a, b):
        change_files(replica, "f")
    id = await start_response(a.api, BODY)
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
async def test_what_ends_the_server_each_time_fails(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BODY)
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
    id = await start_response(a.api, BODY)
    await cut_after(a, [id], 3)
    change_files(b, "changed")
    await take_over(b, clock)
    assert (await get(b.api, id))["status"] in ("queued", "in_progress"), "others may serve it"
    b.resumer.add(await b.store.run(Operations.take_over, None, 1))
    body = await wait_for(b.api, id, "failed")
    assert body["error"]["message"] == "the model fake has changed since the response was begun"


@pytest.mark.slow
async def test_it_waits_for_room_in_the_queue(make_replicas, monkeypatch):
    monkeypatch.setattr("fastovms.parts.responses.resumption._RETRY", 0.001)
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BODY)
    await cut_after(a, [id], 3)
    b.api.backend.submit_error = Overloaded("full")
    resume(b.api)
    await take_over(b, clock)
    await asyncio.sleep(0.01)
    b.api.backend.submit_error = None
    assert (await wait_for(b.api, id, "completed"))["output"][0]["content"][0]["text"] == "Hello!"


# A response that was queued while its model was away is told what there was when it was accepted.


async def add_turn(api, id: str, text: str) -> None:
    item = {"type": "message", "role": "user", "content": text}
    assert (await ask(api, "POST", f"/v1/conversations/{id}/items", {"items": [item]}))[0] == 200


async def change_conversation(api, id: str) -> None:
    """Has a conversation another turn in place of its last one."""
    _, listed = await ask(api, "GET", f"/v1/conversations/{id}/items")
    path = f"/v1/conversations/{id}/items/{listed['data'][0]['id']}"
    assert (await ask(api, "DELETE", path))[0] == 200
    await add_turn(api, id, "later")


async def delete(api, path: str) -> None:
    assert (await ask(api, "DELETE", path))[0] == 200


QUEUED: dict[str, Callable[[Any, str], Any]] = {
    "nothing happens": lambda api, id: asyncio.sleep(0),
    "a turn is added": lambda api, id: add_turn(api, id, "later"),
    "a turn is replaced": change_conversation,
    "the conversation is deleted": lambda api, id: delete(api, f"/v1/conversations/{id}"),
}


async def queue_in_conversation(replica: Replica) -> tuple[str, str]:
    """Queues a response on a replica without its model. Returns its id and its conversation's."""
    _, conversation = await ask(replica.api, "POST", "/v1/conversations", {})
    for text in ("first", "second"):
        await add_turn(replica.api, conversation["id"], text)
    body = {**BODY, "conversation": conversation["id"]}
    return await start_response(replica.api, body), conversation["id"]


async def run_elsewhere(a: Replica, b: Replica, clock, id: str) -> str:
    """Has a replica that is gone lose its response, and another one run it. Returns the prompt."""
    a.store.error = StateFailed("gone")
    for run in a.runs.all():
        run.lose()
    resume(b.api)
    await take_over(b, clock)
    await wait_for(b.api, id, "completed")
    [prompt] = prompts(b)
    return prompt


def prompts(replica: Replica) -> list[str]:
    """Returns the prompts that the model of a replica was given."""
    return [bytes(one.prompt_token_ids).decode() for one in replica.api.backend.submitted]


@pytest.mark.slow
@pytest.mark.parametrize("case", QUEUED)
async def test_queued_response_sees_its_conversation_as_it_was(make_replicas, case):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    Holder(a)
    id, conversation_id = await queue_in_conversation(a)
    await QUEUED[case](b.api, conversation_id)
    prompt = await run_elsewhere(a, b, clock, id)
    assert [text in prompt for text in ("first", "second", "Hi", "later")] == [True] * 3 + [False]


@pytest.mark.slow
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_queued_response_sees_its_chain_as_it_was(make_replicas, is_deleted):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    previous = await start_response(a.api, {**BODY, "input": "first"})
    resume(a.api)
    await wait_for(a.api, previous, "completed")
    Holder(a)
    id = await start_response(a.api, {**BODY, "previous_response_id": previous})
    if is_deleted:
        await delete(b.api, f"{V1}/{previous}")
    assert "first" in await run_elsewhere(a, b, clock, id)


@pytest.mark.slow
async def test_queued_response_sees_the_text_of_its_document(make_replicas):
    documents = Documents(MediaConfig(), lambda tenant, id: Path(), lambda *given: "")
    (a, b), clock = make_replicas("a", "b", resumes=True, documents=documents)
    Holder(a)
    data = base64.b64encode(b"Once upon a time").decode()
    part = {"type": "input_file", "filename": "a.txt", "file_data": data}
    body = {**BODY, "input": [{"role": "user", "content": [part]}]}
    id = await start_response(a.api, body)
    assert "File a.txt:\nOnce upon a time" in await run_elsewhere(a, b, clock, id)
    documents.close()


@pytest.mark.slow
async def test_queued_response_of_an_older_server_is_resumed(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    Holder(a)
    id, _ = await queue_in_conversation(a)
    key = ResponseKey("", id)

    def forget_items(state: Operations) -> None:
        [[found]] = state._tables.execute("SELECT job FROM jobs").fetchall()
        job = orjson.loads(found[:-4])
        assert len(job.pop("items")) == 3
        model = state._tables.execute("SELECT model FROM runs").fetchone()[0]
        assert state.set_resumption(*key, Resumption(model, orjson.dumps(job)))

    await a.store.run(forget_items)
    assert "first" in await run_elsewhere(a, b, clock, id)


@pytest.mark.slow
async def test_queued_response_that_has_begun_keeps_its_prompt_and_its_model(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    holder = Holder(a)
    id, conversation_id = await queue_in_conversation(a)
    [queued] = await a.store.run(Operations.list_running, 9)
    change_files(a, "f")
    holder.may_load.set()
    await a.api.backend.received.wait()
    [begun] = await a.store.run(Operations.list_running, 9)
    assert (queued.model, begun.model) == ("? fake", "f fake")
    await cut_after(a, [id], 3)
    await add_turn(b.api, conversation_id, "later")
    await take_over(b, clock)
    assert prompts(b) == [], "its model has other files"
    change_files(b, "f")
    resume(b.api)
    await b.renew()
    await wait_for(b.api, id, "completed")
    assert prompts(a) == prompts(b)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"best_of": 2, "temperature": 1}], ids=["one", "several"])
async def test_queued_response_that_waits_for_room_is_resumed_once(
    make_replicas, monkeypatch, more
):
    monkeypatch.setattr("fastovms.parts.responses.resumption._RETRY", 0.001)
    (a, b), clock = make_replicas("a", "b", resumes=True)
    Holder(a)
    change_files(b, "f")
    b.api.backend.submit_error = Overloaded("full")
    id = await start_response(a.api, {**BODY, **more})
    a.store.error = StateFailed("gone")
    for run in a.runs.all():
        run.lose()
    resume(b.api)
    await take_over(b, clock)
    async with asyncio.timeout(20):
        while (await b.store.run(Operations.list_running, 9))[0].model == "? fake":  # noqa: ASYNC110
            await asyncio.sleep(0)
    for _ in range(3):
        await b.renew()
        await settle()
    b.api.backend.submit_error = None
    await wait_for(b.api, id, "completed")
    assert len(prompts(b)) == 1


@pytest.mark.slow
async def test_queued_response_of_several_samples_is_not_resumed_once_it_has_begun(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    holder = Holder(a)
    id = await start_response(a.api, {**BODY, "best_of": 2, "temperature": 1})
    holder.may_load.set()
    await a.api.backend.received.wait()
    [begun] = await a.store.run(Operations.list_running, 9)
    assert begun.model == ""
    await cut_after(a, [id], 3)
    await take_over(b, clock)
    await wait_for(b.api, id, "failed")


@pytest.mark.slow
async def test_queued_response_that_may_wait_is_resumed_behind_all_others(make_replicas):
    (a, b), clock = make_replicas("a", "b", resumes=True)
    Holder(a)
    body = {**BODY, **WINDOW}
    await run_elsewhere(a, b, clock, await start_response(a.api, body))
    [request] = b.api.backend.submitted
    assert request.priority == LOWEST_PRIORITY - 1


@pytest.mark.slow
@pytest.mark.parametrize("is_queued", [False, True])
@pytest.mark.parametrize(
    ("caller", "fields", "expected"),
    [
        ({"tenant": "key"}, {}, ("key", "key", -1)),
        ({"tenant": "key"}, {"priority": 3}, ("key", "key", 2)),
        ({"tenant": "key"}, WINDOW, ("key", "key", LOWEST_PRIORITY - 1)),
        ({"tenant": "key", "priority": 7}, {"priority": 3}, ("key", "key", 6)),
        ({"tenant": "key", "priority": 7}, WINDOW, ("key", "key", 6)),
        ({"client": "10.0.0.1:80"}, {}, ("", "10.0.0.1", -1)),
    ],
)
async def test_resumed_response_keeps_its_key_its_address_and_its_priority(
    make_replicas, is_queued, caller, fields, expected
):
    (a, b, c), clock = make_replicas("a", "b", "c", resumes=True)
    if is_queued:
        Holder(a)
    body = {**BODY, "background": True, **fields}
    status, answer = await ask(a.api, "POST", V1, body, **caller)
    assert status == 200, answer
    for before, after in ((a, b), (b, c)):
        before.store.error = StateFailed("gone")
        for run in before.runs.all():
            run.lose()
        await take_over(after, clock)
        await after.api.backend.received.wait()
        [request] = after.api.backend.submitted
        assert (request.tenant, request.owner, request.priority) == expected
        [run] = after.runs.all()
        assert run.owner == expected[1]


# A run is made again of what is kept, or its response fails and says why.


async def cut(make_replicas, path: str = V1) -> tuple[RunRestorer, ResponseKey, CutResponse, Any]:
    """A response of which three tokens are known, in the hands of another replica."""
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start_response(a.api, BODY, path)
    await cut_after(a, [id], 3)
    b.keeper._resumer = None
    await take_over(b, clock)
    [response] = await b.store.run(Operations.take_over, b.resumer.models(), 1)
    assert response.model == b.resumer.models()[0]
    found = await b.store.run(Operations.begin_attempt, *response.key)
    assert found is not None
    return RunRestorer(b.api.context, b.store), response.key, found, b.api


async def restored(restorer: RunRestorer, key: ResponseKey, found: CutResponse) -> BackgroundRun:
    async with restorer.held(restorer.models()[0]) as model:
        return await restorer.restored(key, found, model)


def delta_of(event: bytes) -> str:
    return orjson.loads(event).get("delta", "")


@pytest.mark.slow
async def test_it_stands_where_it_was_cut(make_replicas):
    restorer, key, found, api = await cut(make_replicas)
    run = await restored(restorer, key, found)
    run.go_on()
    [request] = api.backend.submitted
    assert bytes(request.generated_token_ids) == b"Hel"
    assert request.priority == -1, "it came before those that wait now"
    assert "".join(delta_of(event) for _, event in run.log.events()) == "Hel"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found._replace(job=b"{}"), "written by another version of the server"),
        (
            lambda found: found._replace(packs=[found.packs[0]._replace(outputs=b"other")]),
            "the stored output of the model is damaged",
        ),
        (
            lambda found: found._replace(packs=[EventPack(3, found.packs[0].data, None)]),
            "there are no events from 0 to 3",
        ),
    ],
)
async def test_nobody_can_go_on(make_replicas, change, message):
    restorer, key, found, _ = await cut(make_replicas)
    with pytest.raises(CannotGoOn, match=message):
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
    with pytest.raises(CannotGoOn, match=message):
        async with RunRestorer(api.context, make_state().store).held(key):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize(
    ("status", "last"), [(failed("gone"), "failed"), (ResponseStatus("cancelled"), "incomplete")]
)
async def test_what_has_ended_tells_what_was_said(make_replicas, path, status, last):
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


# Several replicas: who runs a response, who cancels it, and what follows when its replica is
# gone.


async def running_response(replica) -> str:
    """Starts a response that has made some text."""
    resume(replica.api, 0)
    id = await start(replica.api)
    resume(replica.api, 3)
    await wait_for(replica.api, id, "in_progress")
    return id


async def until_told(replica, id: str, status: str) -> dict:
    """What a replica tells of a response that runs elsewhere, once it tells this status."""
    async with asyncio.timeout(10):
        while (body := await get(replica.api, id))["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return body


async def test_another_replica_tells_what_is_known(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await start(a.api)
    told = await get(b.api, id)
    assert (told["status"], told["output"], told["error"]) == ("queued", [], None)
    resume(a.api, 3)
    told = await until_told(b, id, "in_progress")
    assert told == {**await get(a.api, id), "output": told["output"]}
    resume(a.api)
    assert await until_told(b, id, "completed") == await get(a.api, id)


async def test_what_runs_elsewhere_is_not_continued_yet(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    body = {"model": "fake", "input": "B", "previous_response_id": id}
    status, answer = await ask(b.api, "POST", V1, body)
    assert (status, answer["error"]["param"]) == (400, "previous_response_id")


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
    async with asyncio.timeout(10):
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
    # It was only slow.
    await a.renew()
    assert (await get(a.api, id))["status"] == "failed"
    assert a.api.backend.aborted


@pytest.mark.slow
async def test_an_outage_makes_nobody_fail(make_replicas):
    (a, b), clock = make_replicas("a", "b")
    id = await running_response(a)
    for _ in range(20):
        await a.renew()
        await b.renew()
        clock.now += 1
    for replica in (a, b):
        replica.store.error = StateFailed("gone")
    for _ in range(20):
        await a.renew()
        await b.renew()
        clock.now += 1
    b.store.error = None
    for _ in range(int(LEASE) - 2):
        await b.renew()
        clock.now += 1
    a.store.error = None
    await a.renew()
    for _ in range(20):
        await b.renew()
        await a.renew()
        clock.now += 1
    resume(a.api)
    assert await until_told(b, id, "completed")


@pytest.mark.slow
async def test_a_replica_that_was_stopped_for_a_while_does_not_end_others(make_replicas):
    (a, b), clock = make_replicas("a", "b")
    id = await running_response(a)
    for _ in range(20):
        await a.renew()
        await b.renew()
        clock.now += 1
    clock.now += 3 * LEASE  # both were, and a begins again a little later
    await b.renew()
    await a.renew()
    resume(a.api)
    assert await until_told(b, id, "completed")


async def test_what_is_deleted_elsewhere_does_not_go_on(make_replicas):
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    assert await b.store.run(Operations.delete_response, "", id)
    await a.renew()
    await a.runs.drain(10)
    assert a.api.backend.aborted
    assert (await ask(a.api, "GET", f"{V1}/{id}"))[0] == 404


async def test_what_has_no_owner_any_more_is_given_up(make_replicas, monkeypatch):
    monkeypatch.setattr("fastovms.parts.responses.background._PATIENCE", 0.0)
    (a, b), _ = make_replicas("a", "b")
    id = await running_response(a)
    a.store.error = StateFailed("gone")
    resume(a.api)
    await a.runs.drain(10)
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
async def test_a_response_ends_as_the_others_tell_it(make_replicas):
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
    body = {**BODY, "background": in_background, "request_id": "mine"}
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


CUT = StoredResponse(
    "r",
    orjson.dumps({"id": "r", "background": True}),
    progress=ResponseProgress.RUNNING,
    resumption=Resumption("m", b"job"),
)


async def cut_off(tmp_path) -> StateStore:
    """The state of the only server, which was killed while a response ran."""
    store = open_at(tmp_path)
    await store.run(Operations.add_response, "t", CUT)
    await store.close()
    return open_at(tmp_path)


def fail_once(store: StateStore, operation: Callable[..., Any]) -> None:
    """Has the disk fail an operation the first time."""
    is_first = True

    async def fail(*args: object) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            raise StateFailed("full")
        return await run(*args)

    run = replace_operation(store, operation, fail)


class Adds:
    """Stands for a `Resumer`: takes note of what it is to go on with."""

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
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
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


async def test_that_it_cannot_be_written_is_logged(tmp_path, monkeypatch, caplog):
    store = await cut_off(tmp_path)
    fail_once(store, Operations.interrupt_expired)
    keeper = LeaseKeeper(store, BackgroundRuns(1))
    keeper.start()
    assert keeper._task is not None
    await keeper._task
    assert "still count as running: full" in caplog.text
    await store.close()
