"""Tests of responses for a model that is not in memory: stored first, started when it is loaded."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.api.served import Release
from fastovms.config import ApiConfig
from fastovms.errors import BackendUnavailable, InvalidField, ServerClosing
from fastovms.parts.responses import background
from fastovms.parts.responses.background import ResponsesState
from fastovms.state.operations import Operations
from fastovms.state.store import ResponseProgress
from tests.api.responses.conftest import BACKGROUND, V1, ask, start, wait_for
from tests.api.responses.events import kinds
from tests.fakes import FakeStream

STREAMED = {**BACKGROUND, "background": False, "stream": True}
ENDED = ("completed", "incomplete", "failed", "cancelled")


class Holder:
    """Stands for a pool whose model is loaded when a test requests it.

    Attributes:
        num_uses, num_waiting: the numbers of requests that use the model and that wait for it.
    """

    loads_on_demand = True

    def __init__(self) -> None:
        self.loaded = asyncio.Event()
        self.error: Exception | None = None
        self.num_uses = self.num_waiting = 0
        self.asked = asyncio.Event()

    def try_acquire(self, name: str) -> Release | None:
        return None

    async def acquire(self, name: str, client: str = "") -> Release:
        self.num_waiting += 1
        self.asked.set()
        try:
            await self.loaded.wait()
        finally:
            self.num_waiting -= 1
        if self.error is not None:
            raise self.error
        self.num_uses += 1
        return self.release

    def release(self) -> None:
        self.num_uses -= 1

    def load(self, error: Exception | None = None) -> None:
        self.error = error
        self.loaded.set()


@pytest.fixture
def away(make):
    """Returns an API whose model is not in memory, and its holder."""

    def make_away(**options):
        api = make(**options)
        holder = api.context.models.holder = Holder()
        return api, holder

    return make_away


async def test_queued_response_runs_once_its_model_is_loaded(away):
    api, holder = away()
    id = await start(api, temperature=0.5)
    await asyncio.wait_for(holder.asked.wait(), 60)
    assert (await ask(api, "GET", f"{V1}/{id}"))[1]["status"] == "queued"
    holder.load()
    body = await wait_for(api, id, *ENDED)
    assert (body["status"], body["temperature"]) == ("completed", 0.5)
    assert body["output"][0]["content"][0]["text"] == "Hello!"
    assert body["usage"]["output_tokens"] == 7
    assert holder.num_uses == 0


async def test_queued_response_waits_for_room_in_the_queue_of_its_model(away, monkeypatch):
    """The response was accepted and must not fail because other requests fill the queue when the
    model is loaded."""
    monkeypatch.setattr(background, "_RETRY", 0.01)
    api, holder = away()
    api.backend.max_num_waiting = 0
    ids = [await start(api), await start(api)]
    holder.load()
    await asyncio.sleep(0.05)
    assert (await ask(api, "POST", f"{V1}/{ids[1]}/cancel"))[1]["status"] == "cancelled"
    assert (await ask(api, "GET", f"{V1}/{ids[0]}"))[1]["status"] == "queued"
    api.backend.max_num_waiting = 1
    await asyncio.sleep(0.05)
    assert (await wait_for(api, ids[0], *ENDED))["status"] == "completed"
    assert holder.num_uses == 0


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_queued_response_is_cancelled_before_its_model_is_loaded(away, is_waiting):
    api, holder = away()
    id = await start(api)
    if is_waiting:
        await asyncio.wait_for(holder.asked.wait(), 60)
    for _ in range(2):
        status, body = await ask(api, "POST", f"{V1}/{id}/cancel")
        assert (status, body["status"]) == (200, "cancelled")
    assert holder.num_waiting == 0
    holder.load()
    await asyncio.sleep(0.01)
    assert not api.backend.submitted
    assert (await wait_for(api, id, *ENDED))["status"] == "cancelled"


async def test_queued_response_is_deleted_before_its_model_is_loaded(away):
    api, holder = away()
    id = await start(api)
    assert (await ask(api, "DELETE", f"{V1}/{id}"))[0] == 200
    assert (await ask(api, "GET", f"{V1}/{id}"))[0] == 404
    assert (holder.num_waiting, api.backend.submitted) == (0, [])


@pytest.mark.parametrize(
    ("error", "fields", "message"),
    [
        (BackendUnavailable("no memory"), {}, "no memory"),
        (ServerClosing("the server is shutting down"), {}, "the server is shutting down"),
        (None, {"input": "long " * 1000}, "maximum context length"),
        (None, {"max_output_tokens": 5000}, "max_output_tokens must be at most"),
    ],
)
async def test_queued_response_fails_with_its_model(away, error, fields, message):
    api, holder = away()
    id = await start(api, **fields)
    holder.load(error)
    body = await wait_for(api, id, *ENDED)
    assert body["status"] == "failed"
    assert message in body["error"]["message"]
    assert holder.num_uses == 0


async def test_queued_response_is_left_to_the_next_process(away, make_state):
    state = make_state()
    resuming = ResponsesState(state.store, state.runs, resumes=True)
    api, holder = away(state=resuming)
    id = await start(api)
    holder.load(ServerClosing("the server is shutting down"))
    await state.runs.drain(60)
    kept = await state.store.run(Operations.find_response, "", id)
    assert kept is not None
    assert kept.progress is ResponseProgress.RUNNING


@pytest.mark.parametrize("background", [False, True])
async def test_stream_begins_before_the_model_is_loaded(away, background):
    api, holder = away()
    stream = FakeStream()
    body = {**STREAMED, "background": background}
    task = asyncio.ensure_future(api.call("POST", V1, body, stream))
    await asyncio.wait_for(stream.first_write.wait(), 60)
    created, queued = stream.events
    assert (created["type"], created["response"]["status"]) == ("response.created", "queued")
    assert queued["type"] == "response.queued"
    holder.load()
    await asyncio.wait_for(task, 60)
    events = [event for event in stream.events if event != "[DONE]"]
    assert kinds(events)[2] == "in_progress"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello!"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (await ask(api, "GET", f"{V1}/{created['response']['id']}"))[1]["status"] == "completed"


async def test_stream_fails_if_its_model_cannot_be_loaded(away):
    api, holder = away()
    stream = FakeStream()
    task = asyncio.ensure_future(api.call("POST", V1, STREAMED, stream))
    await asyncio.wait_for(stream.first_write.wait(), 60)
    holder.load(BackendUnavailable("no memory"))
    await asyncio.wait_for(task, 60)
    *_, failed, done = stream.events
    assert (failed["type"], done) == ("response.failed", "[DONE]")
    assert failed["response"]["error"]["message"] == "no memory"


async def test_client_that_leaves_waits_for_no_model(away):
    api, holder = away()
    stream = FakeStream()
    task = asyncio.ensure_future(api.call("POST", V1, STREAMED, stream))
    await asyncio.wait_for(holder.asked.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert holder.num_waiting == 0


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    ("limit", "asked", "num_tokens"), [(3, None, 3), (3, 5, 5), (3, 2, 2), (0, None, 7)]
)
async def test_background_response_has_a_default_limit(away, is_loaded, limit, asked, num_tokens):
    api, holder = away(config=ApiConfig(max_background_tokens=limit))
    if is_loaded:
        api.context.models.holder = None
    id = await start(api, max_output_tokens=asked)
    holder.load()
    body = await wait_for(api, id, *ENDED)
    assert body["usage"]["output_tokens"] == num_tokens
    assert body["status"] == ("completed" if num_tokens == 7 else "incomplete")
    assert body["max_output_tokens"] == asked


async def test_cancel_waits_for_a_response_that_is_being_created(make_state):
    state = make_state()
    with state.creating("", "resp_a"):
        with pytest.raises(InvalidField), state.creating("", "resp_a"):
            pass
        created = asyncio.ensure_future(state.created("", "resp_a"))
        await state.created("", "resp_b")
        await asyncio.sleep(0)
        assert not created.done()
        state.note_created("", "resp_a")
        await asyncio.wait_for(created, 60)
    await state.created("", "resp_a")
