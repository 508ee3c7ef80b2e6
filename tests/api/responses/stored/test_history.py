"""What came before: previous responses, conversations, references to items."""

from __future__ import annotations

import pytest

from fastovms.api.responses.background_runs import ResponsesState
from fastovms.api.responses.stored import history
from fastovms.errors import StateFailed
from tests.api.chat_models import call_text, prompt_of
from tests.api.responses.conftest import BODY, TOOL, V1, ask
from tests.api.responses.events import check
from tests.fakes import FakeStream


async def create(api, text: str, *, tenant: str = "", **fields) -> dict:
    body = {"model": "fake", "input": text, **fields}
    status, response = await ask(api, "POST", V1, body, tenant=tenant)
    assert status == 200, response
    return response


async def test_a_chain_holds_everything_but_the_instructions(make):
    api = make()
    first = await create(api, "A", instructions="Be kind.")
    second = await create(api, "B", previous_response_id=first["id"])
    third = await create(api, "C", previous_response_id=second["id"], instructions="Be brief.")
    assert prompt_of(api) == "s:Be brief.;u:A;a:Hello!;u:B;a:Hello!;u:C;>"
    assert third["previous_response_id"] == second["id"]
    assert third["instructions"] == "Be brief."


async def test_branches_do_not_see_each_other(make):
    api = make()
    root = await create(api, "root")
    await create(api, "left", previous_response_id=root["id"])
    await create(api, "right", previous_response_id=root["id"])
    assert prompt_of(api) == "u:root;a:Hello!;u:right;>"


async def test_calls_and_thoughts_are_in_the_chain(make):
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


async def test_a_stream_can_be_continued_as_soon_as_it_has_ended(make):
    api = make()
    stream = FakeStream()
    body = {"model": "fake", "input": "A", "stream": True}
    await api.call("POST", V1, body, stream)
    await create(api, "B", previous_response_id=check(stream.events)["id"])
    assert prompt_of(api) == "u:A;a:Hello!;u:B;>"


async def test_a_cut_answer_goes_on(make):
    api = make()
    first = await create(api, "A", max_output_tokens=3)
    await create(api, [], previous_response_id=first["id"])
    assert prompt_of(api) == "u:A;a:Hel"


async def test_a_chain_goes_over_dialects(make):
    api = make()
    first = await create(api, "A")
    body = {"model": "fake", "input": "B", "previous_response_id": first["id"]}
    status, _ = await ask(api, "POST", "/v3/responses", body)
    assert status == 200
    assert prompt_of(api) == "u:A;a:Hello!;u:B;>"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"conversation": "conv_none"}, "conversation"),
        ({"conversation": {"id": "conv_none"}}, "conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input"),
    ],
)
async def test_what_is_not_there(make, fields, param):
    api = make()
    status, body = await ask(api, "POST", V1, {"model": "fake", "input": "A", **fields})
    assert status == 404
    assert body["error"]["param"] == param
    assert "not found" in body["error"]["message"]


async def test_what_was_not_stored_or_is_deleted_cannot_be_continued(make):
    api = make()
    for response in (await create(api, "A", store=False), await create(api, "B")):
        await ask(api, "DELETE", f"{V1}/{response['id']}")
        body = {"model": "fake", "input": "C", "previous_response_id": response["id"]}
        status, answer = await ask(api, "POST", V1, body)
        assert status == 404
        assert answer["error"]["code"] == "previous_response_not_found"


async def test_a_chain_with_a_gap_names_what_is_missing(make):
    api = make()
    first = await create(api, "A")
    second = await create(api, "B", previous_response_id=first["id"])
    await ask(api, "DELETE", f"{V1}/{first['id']}")
    body = {"model": "fake", "input": "C", "previous_response_id": second["id"]}
    status, answer = await ask(api, "POST", V1, body)
    assert status == 404
    assert first["id"] in answer["error"]["message"]


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


async def test_references_stand_for_items(make):
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


async def test_many_references_are_looked_up_in_parts(make, make_state):
    state = make_state()
    api = make(state=state, context=10_000)
    sizes = []
    find = state.store.find_items

    async def note(tenant, ids):
        sizes.append(len(ids))
        return await find(tenant, ids)

    state.store.find_items = note  # type: ignore[method-assign]
    known = (await create(api, "A"))["output"][0]["id"]
    references = [{"type": "item_reference", "id": id} for id in [known] * 300 + ["x"] * 9000]
    status, _ = await ask(api, "POST", V1, {"model": "fake", "input": references})
    assert status == 404
    assert sizes == [256, 256]


async def test_a_long_chain_is_refused_or_loses_its_beginning(make):
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
    status, conversation = await ask(api, "POST", "/v1/conversations", fields)
    assert status == 200
    return conversation


async def test_a_conversation_grows(make):
    api = make()
    conversation = await new_conversation(api, items=[{"role": "system", "content": "rules"}])
    id = conversation["id"]
    first = await create(api, "A", conversation=id)
    assert first["conversation"] == {"id": id}
    await create(api, "B", conversation={"id": id}, store=True)
    assert prompt_of(api) == "s:rules;u:A;a:Hello!;u:B;>"
    _, listed = await ask(api, "GET", f"/v1/conversations/{id}/items?order=asc")
    assert [item["role"] for item in listed["data"]] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert listed["data"][2] == first["output"][0]


async def test_a_response_that_is_not_stored_still_adds_to_its_conversation(make):
    api = make()
    id = (await new_conversation(api))["id"]
    response = await create(api, "A", conversation=id, store=False)
    assert (await ask(api, "GET", f"{V1}/{response['id']}"))[0] == 404
    await create(api, "B", conversation=id)
    assert prompt_of(api) == "u:A;a:Hello!;u:B;>"


async def test_a_deleted_response_stays_in_its_conversation(make):
    api = make()
    id = (await new_conversation(api))["id"]
    response = await create(api, "A", conversation=id)
    await ask(api, "DELETE", f"{V1}/{response['id']}")
    await create(api, "B", conversation=id)
    assert prompt_of(api) == "u:A;a:Hello!;u:B;>"


async def test_a_failed_response_adds_nothing_to_its_conversation(make):
    api = make()
    id = (await new_conversation(api))["id"]
    api.backend.fail_after = 2
    stream = FakeStream()
    body = {"model": "fake", "input": "A", "conversation": id, "stream": True}
    await api.call("POST", V1, body, stream)
    assert check(stream.events)["status"] == "failed"
    _, listed = await ask(api, "GET", f"/v1/conversations/{id}/items")
    assert listed["data"] == []


# A store that fails, or that there is not


class FailingStore:
    def __getattr__(self, name: str):
        async def fail(*args: object, **keywords: object) -> None:
            raise StateFailed("the disk is full")

        return fail


@pytest.fixture
def failing(make, make_state):
    return make(state=ResponsesState(FailingStore(), make_state().runs))  # type: ignore[arg-type]


async def test_an_answer_that_cannot_be_kept_is_given_and_says_so(failing):
    status, body = await ask(failing, "POST", V1, {"model": "fake", "input": "A"})
    assert (status, body["status"], body["store"]) == (200, "completed", False)
    stream = FakeStream()
    body = {"model": "fake", "input": "A", "stream": True}
    await failing.call("POST", V1, body, stream)
    assert stream.events[0]["response"]["store"] is True
    assert check(stream.events)["store"] is False


async def test_what_cannot_be_read_or_kept_is_an_error(failing):
    for fields in ({"previous_response_id": "x"}, {"background": True}, {"conversation": "x"}):
        body = {"model": "fake", "input": "A", **fields}
        assert (await ask(failing, "POST", V1, body))[0] == 503
    assert (await ask(failing, "GET", f"{V1}/x"))[0] == 503


async def test_a_server_that_keeps_nothing(make):
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
        status, answer = await ask(api, "POST", V1, body)
        assert (status, answer["error"]["param"]) == (400, param)
    assert (await ask(api, "POST", "/v1/conversations", {}))[0] == 400


async def test_more_items_than_the_context_has_tokens_are_not_even_read(make, monkeypatch):
    read = []
    monkeypatch.setattr(history, "read_input", lambda given, reading: read.append(len(given)))
    body = {**BODY, "input": [{"role": "user", "content": "x"}] * 201}
    status, answer = await ask(make(context=200), "POST", V1, body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert not read
