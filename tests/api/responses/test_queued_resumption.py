"""Tests of responses that are resumed before their model was loaded. They use the conversation as
it was when they were queued."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from fastovms.errors import Overloaded, StateFailed
from fastovms.params import LOWEST_PRIORITY
from fastovms.parts.media.files import Documents
from fastovms.server_config import MediaConfig
from fastovms.state.operations import Operations
from fastovms.state.store import ResponseKey, Resumption
from tests.api.responses.conftest import BACKGROUND, V1, Replica, ask, resume, wait_for
from tests.api.responses.taking_over import (
    Holder,
    change_files,
    cut_after,
    settle,
    start_response,
    take_over,
)

WINDOW = {"background_options": {"completion_window": "8h"}}


async def add_turn(api, id: str, text: str) -> None:
    item = {"type": "message", "role": "user", "content": text}
    assert (await ask(api, "POST", f"/v1/conversations/{id}/items", {"items": [item]}))[0] == 200


async def change_conversation(api, id: str) -> None:
    """Replaces the last turn of a conversation."""
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
    """Queues a response on a replica without its model. Returns the ids of the response and of its
    conversation."""
    _, conversation = await ask(replica.api, "POST", "/v1/conversations", {})
    for text in ("first", "second"):
        await add_turn(replica.api, conversation["id"], text)
    body = {**BACKGROUND, "conversation": conversation["id"]}
    return await start_response(replica.api, body), conversation["id"]


async def run_elsewhere(a: Replica, b: Replica, clock, id: str) -> str:
    """Lets a response of a replica that has disappeared run on another one. Returns the prompt."""
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
    previous = await start_response(a.api, {**BACKGROUND, "input": "first"})
    resume(a.api)
    await wait_for(a.api, previous, "completed")
    Holder(a)
    id = await start_response(a.api, {**BACKGROUND, "previous_response_id": previous})
    if is_deleted:
        await delete(b.api, f"{V1}/{previous}")
    assert "first" in await run_elsewhere(a, b, clock, id)


@pytest.mark.slow
async def test_queued_response_sees_the_text_of_its_document(make_replicas):
    async def find(tenant: str, id: str) -> Path:
        return Path()

    documents = Documents(MediaConfig(), find, lambda *given: "")
    (a, b), clock = make_replicas("a", "b", resumes=True, documents=documents)
    Holder(a)
    data = base64.b64encode(b"Once upon a time").decode()
    part = {"type": "input_file", "filename": "a.txt", "file_data": data}
    body = {**BACKGROUND, "input": [{"role": "user", "content": [part]}]}
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
    id = await start_response(a.api, {**BACKGROUND, **more})
    a.store.error = StateFailed("gone")
    for run in a.runs.all():
        run.lose()
    resume(b.api)
    await take_over(b, clock)
    async with asyncio.timeout(60):
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
    id = await start_response(a.api, {**BACKGROUND, "best_of": 2, "temperature": 1})
    holder.may_load.set()
    await a.api.backend.received.wait()
    [begun] = await a.store.run(Operations.list_running, 9)
    assert begun.model == ""
    await cut_after(a, [id], 3)
    await take_over(b, clock)
    await wait_for(b.api, id, "failed")


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
    body = {**BACKGROUND, "background": True, **fields}
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
