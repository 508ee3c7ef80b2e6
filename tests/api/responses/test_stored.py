"""Tests of `fastovms/parts/responses/stored.py`."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.errors import StateFailed, TooLarge
from fastovms.params import FinishReason, GenerationOutput
from fastovms.parts.responses import events, history
from fastovms.parts.responses.background import ResponsesState
from fastovms.parts.responses.events import (
    EventLog,
    EventWriter,
    pack_frames,
    pack_outputs,
    unpack_outputs,
)
from fastovms.parts.responses.stored import (
    not_found,
)
from fastovms.state.operations import Operations
from fastovms.state.store import (
    EventPack,
    ResponseKey,
)
from tests.api.chat_models import call_text, prompt_of
from tests.api.responses.conftest import BODY, TOOL, V1, ask, stream_of
from tests.api.responses.events import check
from tests.fakes import token_logprobs
from tests.replicas import replace_operation

# A missing object is a 404 that names it.


def test_long_ids_are_cut_and_faults_named() -> None:
    error = not_found("Item", "x" * 300, param="input", code="c")
    assert (error.param, error.code) == ("input", "c")
    assert "x" * 200 + "'" in str(error)


# Queries of lists, and pages of them.


@pytest.mark.parametrize(
    ("query", "expected", "has_more"),
    [
        ("", "43210", False),
        ("order=asc", "01234", False),
        ("limit=2", "43", True),
        ("limit=2&order=asc", "01", True),
        ("include[]=message.output_text.logprobs&limit=1", "4", True),
        ("include=message.output_text.logprobs&order=desc", "43210", False),
    ],
)
async def test_input_items_are_listed_in_order_up_to_the_limit(kept, query, expected, has_more):
    api, response = kept
    status, body = await ask(api, "GET", f"{V1}/{response['id']}/input_items?{query}")
    assert status == 200
    assert "".join(item["content"][0]["text"] for item in body["data"]) == expected
    assert body["object"] == "list"
    assert body["has_more"] is has_more
    assert body["first_id"] == body["data"][0]["id"]
    assert body["last_id"] == body["data"][-1]["id"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("order=up", "order"),
        ("after=msg_none", "after"),
        ("include=everything", "include[0]"),
        ("x=1&" * 200, None),
    ],
)
async def test_invalid_list_query_is_refused(kept, query, param):
    api, response = kept
    status, body = await ask(api, "GET", f"{V1}/{response['id']}/input_items?{query}")
    assert (status, body["error"]["param"]) == (400, param)


# Earlier input: previous responses, conversations, and references to items.


async def create(api, text: str, *, tenant: str = "", **fields) -> dict:
    body = {"model": "fake", "input": text, **fields}
    status, response = await ask(api, "POST", V1, body, tenant=tenant)
    assert status == 200, response
    return response


async def test_chain_includes_earlier_turns_without_their_instructions(make):
    api = make()
    first = await create(api, "A", instructions="Be kind.")
    await create(api, "left", previous_response_id=first["id"])
    second = await create(api, "B", previous_response_id=first["id"])
    third = await create(api, "C", previous_response_id=second["id"], instructions="Be brief.")
    assert prompt_of(api) == "s:Be brief.;u:A;a:Hello!;u:B;a:Hello!;u:C;>"
    assert third["previous_response_id"] == second["id"]
    assert third["instructions"] == "Be brief."


async def test_chain_includes_calls_and_reasoning(make):
    calls_text = f"<think>hm</think>{call_text()}{call_text('other', '{}')}"

    def script(request, index):
        has_outputs = b"t:1;" in bytes(request.prompt_token_ids)
        return list(b"Sunny." if has_outputs else calls_text.encode())

    api = make(script)
    tools = [TOOL, {"type": "function", "name": "other"}]
    first = await create(api, "Weather?", tools=tools)
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": f"{place}"}
        for place, call in enumerate(calls)
    ]
    second = await create(api, outputs, previous_response_id=first["id"], tools=tools)
    assert prompt_of(api) == (
        "<tool get_weather><tool other>u:Weather?;"
        "a:(hm){get_weather {'city': 'Paris'}}{other {}};t:0;t:1;>"
    )
    assert second["output"][0]["content"][0]["text"] == "Sunny."


async def test_streamed_response_can_be_continued(make):
    api = make()
    first = check(await stream_of(api, {"input": "A"}))
    await create(api, "B", previous_response_id=first["id"])
    assert prompt_of(api) == "u:A;a:Hello!;u:B;>"


@pytest.mark.parametrize(
    ("fields", "deletes", "missing"),
    [({"store": False}, 1, 1), ({}, 1, 1), ({}, 0, 0)],
    ids=["not stored", "deleted", "the one before it is deleted"],
)
async def test_response_without_its_predecessors_cannot_be_continued(
    make, fields, deletes, missing
):
    api = make()
    chain = [await create(api, "A")]
    chain.append(await create(api, "B", previous_response_id=chain[0]["id"], **fields))
    await ask(api, "DELETE", f"{V1}/{chain[deletes]['id']}")
    body = {"model": "fake", "input": "C", "previous_response_id": chain[1]["id"]}
    status, answer = await ask(api, "POST", V1, body)
    assert (status, answer["error"]["code"]) == (404, "previous_response_not_found")
    assert chain[missing]["id"] in answer["error"]["message"]


async def test_cut_answer_is_continued(make):
    api = make()
    first = await create(api, "A", max_output_tokens=3)
    await create(api, [], previous_response_id=first["id"])
    assert prompt_of(api) == "u:A;a:Hel"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"conversation": "conv_none"}, "conversation"),
        ({"conversation": {"id": "conv_none"}}, "conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input"),
    ],
)
async def test_reference_to_a_missing_object_is_not_found(make, fields, param):
    api = make()
    status, body = await ask(api, "POST", V1, {"model": "fake", "input": "A", **fields})
    assert status == 404
    assert body["error"]["param"] == param
    assert "not found" in body["error"]["message"]


async def test_tenants_do_not_find_each_others_responses(make):
    api = make()
    response = await create(api, "A", tenant="one")
    reference = {"type": "item_reference", "id": response["output"][0]["id"]}
    for method, path, body in (
        ("GET", f"{V1}/{response['id']}", None),
        ("DELETE", f"{V1}/{response['id']}", None),
        ("POST", f"{V1}/{response['id']}/cancel", None),
        ("GET", f"{V1}/{response['id']}/input_items", None),
        ("POST", V1, {"model": "fake", "input": "B", "previous_response_id": response["id"]}),
        ("POST", V1, {"model": "fake", "input": [reference]}),
    ):
        status, _ = await ask(api, method, path, body, tenant="two")
        assert status == 404
    assert (await ask(api, "GET", f"{V1}/{response['id']}", tenant="one"))[0] == 200


async def test_item_references_are_replaced_by_items(make):
    api = make()
    first = await create(api, "A")
    _, listed = await ask(api, "GET", f"{V1}/{first['id']}/input_items")
    references = [
        {"type": "item_reference", "id": listed["data"][0]["id"]},
        {"id": first["output"][0]["id"]},
        {"role": "user", "content": "B"},
    ]
    second = await create(api, references)
    assert prompt_of(api) == "u:A;a:Hello!;u:B;>"
    _, listed = await ask(api, "GET", f"{V1}/{second['id']}/input_items?order=asc")
    assert [item["type"] for item in listed["data"]] == ["message"] * 3


async def test_item_references_are_looked_up_in_batches(make, make_state):
    state = make_state()
    api = make(state=state, context=10_000)
    sizes = []

    async def note(tenant, ids):
        sizes.append(len(ids))
        return await find(tenant, ids)

    find = replace_operation(state.store, Operations.find_items, note)
    known = (await create(api, "A"))["output"][0]["id"]
    references = [{"type": "item_reference", "id": id} for id in [known] * 300 + ["x"] * 9000]
    status, _ = await ask(api, "POST", V1, {"model": "fake", "input": references})
    assert status == 404
    assert sizes == [256, 256]


async def test_long_chain_is_refused_or_truncated(make):
    api = make(context=100)
    response = await create(api, "0")
    for number in range(1, 6):
        fields = {"previous_response_id": response["id"], "max_output_tokens": 10}
        response = await create(api, f"{number}", **fields)
    body = {"model": "fake", "input": "x" * 20, "previous_response_id": response["id"]}
    status, answer = await ask(api, "POST", V1, body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    await create(api, "x" * 20, previous_response_id=response["id"], truncation="auto")
    assert prompt_of(api).startswith("u:2;a:Hello!;u:3;")


# Conversations


async def new_conversation(api, **fields) -> dict:
    return await api.answer("/v1/conversations", fields)


async def test_conversation_has_the_turns_of_its_responses(make):
    api = make()
    conversation = await new_conversation(api, items=[{"role": "system", "content": "rules"}])
    id = conversation["id"]
    first = await create(api, "A", conversation=id)
    assert first["conversation"] == {"id": id}
    await create(api, "B", conversation={"id": id}, store=True)
    assert prompt_of(api) == "s:rules;u:A;a:Hello!;u:B;>"
    _, listed = await ask(api, "GET", f"/v1/conversations/{id}/items?order=asc")
    turns = ["user", "assistant"]
    assert [item["role"] for item in listed["data"]] == ["system", *turns, *turns]
    assert listed["data"][2] == first["output"][0]


async def test_failed_response_adds_no_items_to_its_conversation(make):
    api = make()
    id = (await new_conversation(api))["id"]
    api.backend.fail_after = 2
    assert check(await stream_of(api, {"conversation": id}))["status"] == "failed"
    _, listed = await ask(api, "GET", f"/v1/conversations/{id}/items")
    assert listed["data"] == []


@pytest.mark.parametrize("is_stored", [True, False])
async def test_conversation_has_the_turn_of_a_response_that_is_not_kept(make, is_stored):
    api = make()
    id = (await new_conversation(api))["id"]
    response = await create(api, "A", conversation=id, store=is_stored)
    await ask(api, "DELETE", f"{V1}/{response['id']}")
    await create(api, "B", conversation=id)
    assert prompt_of(api) == "u:A;a:Hello!;u:B;>"


# A store that fails or does not exist.


class FailingStore:
    def __getattr__(self, name: str):
        async def fail(*args: object, **keywords: object) -> None:
            raise StateFailed("the disk is full")

        return fail


@pytest.fixture
def failing(make, make_state):
    return make(state=ResponsesState(FailingStore(), make_state().runs))  # type: ignore[arg-type]


async def test_request_that_needs_a_failing_store_is_unavailable(failing):
    for fields in ({"previous_response_id": "x"}, {"background": True}, {"conversation": "x"}):
        body = {"model": "fake", "input": "A", **fields}
        assert (await ask(failing, "POST", V1, body))[0] == 503
    assert (await ask(failing, "GET", f"{V1}/x"))[0] == 503


async def test_server_without_state_refuses_fields_that_need_storage(make):
    api = make(state=None)
    status, body = await ask(api, "POST", V1, {"model": "fake", "input": "A"})
    assert (status, body["store"]) == (200, False)
    assert (await ask(api, "GET", f"{V1}/{body['id']}"))[0] == 404
    for fields, param in (
        ({"previous_response_id": "x"}, "previous_response_id"),
        ({"conversation": "x"}, "conversation"),
        ({"background": True}, "background"),
    ):
        body = {"model": "fake", "input": "A", **fields}
        assert await api.refused(V1, body) == param
    assert (await ask(api, "POST", "/v1/conversations", {}))[0] == 400


async def test_more_items_than_the_context_has_tokens_are_refused_unread(make, monkeypatch):
    read = []
    monkeypatch.setattr(history, "read_input", lambda given, reading: read.append(len(given)))
    body = {**BODY, "input": [{"role": "user", "content": "x"}] * 201}
    status, answer = await ask(make(context=200), "POST", V1, body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert not read


# A log returns the events that were added to it.


FRAMES = st.lists(st.binary(max_size=20).map(lambda data: b"data: %b\n\n" % data.hex().encode()))


@pytest.mark.slow
@given(st.lists(FRAMES, max_size=5), FRAMES, st.integers(0, 30))
def test_log_returns_the_frames_it_was_given(batches, last, start):
    log = EventLog()
    for batch in batches:
        log.append(batch)
        log._seal()
    frames = [frame for batch in batches for frame in batch]
    assert log.num_events == len(frames)
    assert read_all(log, start) == frames[start:]
    loaded = EventLog()
    loaded.extend(EventPack(0, log.dump(last)))
    assert read_all(loaded, start) == [*frames, *last][start:]


def test_long_log_is_compressed():
    log = EventLog()
    frames = [b'data: {"sequence_number":%d,"delta":"some text"}\n\n' % n for n in range(50_000)]
    for frame in frames:
        log.append([frame])
    assert sum(map(len, log._packs)) < sum(map(len, frames)) / 5
    assert read_all(log, 0) == frames
    loaded = EventLog(49_990)
    loaded.extend(EventPack(0, log.dump([])))
    assert loaded.num_bytes < 64 * 1024
    assert read_all(loaded, 49_990) == frames[49_990:]


def read_all(log: EventLog, start: int) -> list[bytes]:
    frames: list[bytes] = []
    while start + len(frames) < log.num_events:
        some = log.read(start + len(frames))
        assert some
        frames += some
    return frames


def pack(start: int, end: int) -> EventPack:
    frames = [b"data: %d\n\n" % number for number in range(start, end)]
    return EventPack(start, pack_frames(frames))


@given(st.integers(0, 12), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_log_accepts_packs_that_overlap(start, lengths):
    """A follower may read packs while a shorter one replaces the last one."""
    log, position = EventLog(start), 0
    for length in lengths:
        for shorter in range(1, length + 1):
            log.extend(pack(position, position + shorter))
        position += length
    expected = [b"data: %d\n\n" % number for number in range(start, position)]
    assert read_all(log, start) == expected
    log.append([b"data: end\n\n"], closes=True)
    assert read_all(log, start) == [*expected, b"data: end\n\n"]


def test_log_refuses_a_gap():
    log = EventLog()
    log.extend(pack(0, 2))
    with pytest.raises(ValueError, match="from 2 to 3"):
        log.extend(pack(3, 4))


# A text of the model is repeated in later prompts exactly.


PLAIN = GenerationOutput(0, [1, 2, 70_000], None, 3, logprobs=[])
OUTPUTS = [
    PLAIN,
    replace(PLAIN, num_cached_tokens=16, logprobs=[token_logprobs(token, 2) for token in (3, 4)]),
    replace(PLAIN, token_ids=[], finish_reason=FinishReason.STOP, stop_token_id=9),
    replace(PLAIN, finish_reason=FinishReason.LENGTH, num_prompt_tokens=40),
]


@pytest.mark.parametrize("outputs", [[], OUTPUTS[:1], OUTPUTS])
def test_packed_outputs_are_unpacked_unchanged(outputs):
    assert unpack_outputs(pack_outputs(outputs)) == outputs


@pytest.mark.parametrize(
    "data",
    [b"", b"other", pack_outputs([PLAIN])[:-5], pack_outputs([replace(PLAIN, token_ids=["a"])])],
    ids=["nothing", "other", "cut", "texts for tokens"],
)
def test_damaged_outputs_are_refused(data):
    with pytest.raises(ValueError, match="the stored output of the model is corrupt"):
        unpack_outputs(data)


# Events are written one write at a time; each write has all events since the one before.


KEY = ResponseKey("t", "r")


class SlowStore:
    """Stores packs when a test requests it.

    Attributes:
        outcomes: the results or exceptions of the next writes; True when there are none left.
    """

    lease = 8.0

    def __init__(self, *outcomes: bool | Exception) -> None:
        self.packs: list[EventPack] = []
        self.outcomes = list(outcomes)
        self.go_on = asyncio.Semaphore(0)
        self.num_writing = 0

    async def run(self, operation: object, tenant: str, id: str, pack: EventPack) -> bool:
        assert operation is Operations.add_events
        assert (tenant, id) == KEY
        assert self.num_writing == 0
        self.num_writing += 1
        await self.go_on.acquire()
        self.num_writing -= 1
        outcome = self.outcomes.pop(0) if self.outcomes else True
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            self.packs.append(pack)
        return outcome


def frames(*numbers: int) -> list[bytes]:
    return [b"event: x\ndata: %d\n\n" % number for number in numbers]


class Writing(NamedTuple):
    """A writer under test. `losses` gets an entry when the response is lost."""

    log: EventLog
    store: SlowStore
    writer: EventWriter
    task: Task
    losses: list[str]


@pytest.fixture
async def write(monkeypatch):
    """Starts to write events to a store that accepts `num_writes` writes."""
    monkeypatch.setattr(events, "SHARED_INTERVAL", 0.0)
    monkeypatch.setattr(events, "_RETRY", 0.0)
    tasks = []

    def start(
        *outcomes: bool | Exception, num_writes: int = 0, begun: Sequence[bytes] = ()
    ) -> Writing:
        log, store, losses = EventLog(), SlowStore(*outcomes), []
        log.append(begun)
        store.go_on = asyncio.Semaphore(num_writes)
        writer = EventWriter(log, store, KEY, keeps_outputs=True)  # type: ignore[arg-type]
        tasks.append(asyncio.ensure_future(writer.run(lambda: losses.append("lost"))))
        return Writing(log, store, writer, tasks[-1], losses)

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def said(*token_ids: int) -> GenerationOutput:
    return GenerationOutput(0, list(token_ids), None, len(token_ids))


async def test_events_during_a_write_are_written_next(write):
    log, store, writer, *_ = write()
    writer.add(frames(0))
    await settle()
    for number in range(1, 10):
        writer.add(frames(number))
        await settle()
    assert log.num_events == 0, "events are sent after they are stored"
    for _ in range(2):
        store.go_on.release()
        await settle()
    assert [pack.first for pack in store.packs] == [0, 1]
    writer.add(frames(10))
    store.go_on.release()
    await settle()
    copy = EventLog()
    for pack in store.packs:
        copy.extend(pack)
    assert read_all(copy, 0) == frames(*range(11))


async def test_failed_write_is_repeated_with_later_events(write):
    log, store, writer, _, losses = write(StateFailed("gone"), StateFailed("still"))
    writer.add_output(said(1))
    writer.add(frames(0, 1))
    await settle()
    writer.add_output(said(2))
    writer.add(frames(2))
    store.go_on.release()
    await settle()
    assert read_all(log, 0) == frames(0, 1, 2), "clients do not wait for a disk that fails"
    for _ in range(2):
        store.go_on.release()
        await settle()
    assert [pack.first for pack in store.packs] == [0]
    copy = EventLog()
    copy.extend(store.packs[0])
    assert read_all(copy, 0) == frames(0, 1, 2)
    outputs = unpack_outputs(store.packs[0].outputs)
    assert [output.token_ids for output in outputs] == [[1], [2]]
    assert losses == []


@pytest.mark.parametrize(
    ("outcome", "expected", "logged"), [(False, ["lost"], 0), (TooLarge("full"), [], 2)]
)
async def test_writer_stops_if_ownership_is_lost_or_events_are_too_large(
    write, outcome, expected, logged
):
    log, _, writer, task, losses = write(outcome, num_writes=1)
    writer.add(frames(0))
    await task
    writer.add(frames(1))
    assert losses == expected
    assert log.num_events == logged


async def test_writes_of_output_are_apart_by_the_shared_interval(write, monkeypatch):
    """The interval begins with the first write of model output, which happens at once."""
    monkeypatch.setattr(events, "SHARED_INTERVAL", 3600.0)
    log, store, writer, task, _ = write(num_writes=100)
    writer.add(frames(0))
    await settle()
    assert not writer.advanced.is_set()
    writer.add_output(said(1))
    writer.add(frames(1))
    await settle()
    assert writer.advanced.is_set()
    writer.add_output(said(2))
    writer.add(frames(2))
    await settle()
    assert [pack.first for pack in store.packs] == [0, 1]
    task.cancel()
    await writer.flush()
    assert [pack.first for pack in store.packs] == [0, 1, 2]
    assert read_all(log, 0) == frames(0, 1, 2)


async def test_outputs_without_events_are_stored(write):
    log, store, writer, *_ = write(num_writes=100)
    writer.add(frames(0))
    await settle()
    for number in (1, 2):
        writer.add_output(said(number))
        await settle()
    writer.add_output(said(3))
    writer.add(frames(1))
    await settle()
    packs = {pack.first: pack for pack in store.packs}  # one takes the place of another
    assert len(store.packs) == 4
    assert list(packs) == [0, 1]
    outputs = unpack_outputs(packs[1].outputs)
    assert [output.token_ids for output in outputs] == [[1], [2], [3]]
    copy = EventLog()
    for pack in store.packs:
        copy.extend(pack)
    assert read_all(copy, 0) == read_all(log, 0) == frames(0, 1)
    writer.add_output(said(4))
    await settle()
    assert store.packs[-1].first == 2


async def test_writer_continues_the_log_of_another_replica(write):
    log, store, writer, *_ = write(num_writes=100, begun=frames(0, 1, 2))
    writer.add(frames(3))
    await settle()
    assert [pack.first for pack in store.packs] == [3]
    assert read_all(log, 0) == frames(0, 1, 2, 3)
