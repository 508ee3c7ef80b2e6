"""Tests of `fastovms/parts/responses/conversations.py`."""

from __future__ import annotations

import pytest

from tests.api.responses.conftest import ITEMS, V1, V3, ask
from tests.fakes import FakeStream

# What is stored of a response, and what is not.


@pytest.mark.parametrize("path", [V1, V3])
async def test_stored_response_is_read_until_it_is_deleted(kept, path):
    api, response = kept
    place = f"{path}/{response['id']}"
    assert await ask(api, "GET", place) == (200, response)
    deleted = {"id": response["id"], "object": "response", "deleted": True}
    assert await ask(api, "DELETE", place) == (200, deleted)
    for method in ("GET", "DELETE"):
        assert (await ask(api, method, place))[0] == 404
    assert (await ask(api, "GET", f"{place}/input_items"))[0] == 404
    assert (await ask(api, "POST", f"{place}/cancel"))[0] == 404


async def test_id_of_another_kind_is_not_found(make):
    api = make()
    _, conversation = await ask(api, "POST", "/v1/conversations", {})
    _, response = await ask(api, "POST", V1, {"model": "fake", "input": "Hi"})
    for path in (
        f"{V1}/{conversation['id']}",
        f"{V1}/{response['output'][0]['id']}",
        f"/v1/conversations/{response['id']}",
        f"{V1}/x%00y",
    ):
        assert (await ask(api, "GET", path))[0] == 404


@pytest.fixture
def small(make, make_state):
    return make(state=make_state(max_bytes=5000))


async def test_items_larger_than_the_state_are_refused(small):
    long = [{"role": "user", "content": "x" * 900}] * 8
    kept = (await ask(small, "POST", V1, {"model": "fake", "input": "Hi"}))[1]["id"]
    _, conversation = await ask(small, "POST", "/v1/conversations", {})
    place = f"/v1/conversations/{conversation['id']}/items"
    for path in ("/v1/conversations", place):
        status, answer = await ask(small, "POST", path, {"items": long})
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert "5000" in answer["error"]["message"]
    body = {"model": "fake", "input": long, "max_output_tokens": 2, "truncation": "auto"}
    status, response = await ask(small, "POST", V1, body)
    assert (status, response["store"]) == (200, False)
    assert (await ask(small, "GET", f"{V1}/{response['id']}"))[0] == 404
    status, _ = await ask(small, "POST", V1, {**body, "background": True})
    assert status == 400
    assert (await ask(small, "GET", f"{V1}/{kept}"))[0] == 200


# Items with the same id


def same(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text, "id": "msg-0"} for text in texts]


async def paged(api, place: str, order: str) -> list[str]:
    """Returns the texts of the items, which are requested one by one."""
    texts: list[str] = []
    query = f"limit=1&order={order}"
    while len(texts) < 20:
        _, page = await ask(api, "GET", f"{place}?{query}")
        texts += [item["content"][0]["text"] for item in page["data"]]
        if not page["has_more"]:
            break
        query = f"limit=1&order={order}&after={page['last_id']}"
    return texts


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_items_of_a_response_have_ids_of_their_own(make, order):
    api = make()
    call = {"type": "function_call", "id": "msg-0", "call_id": "1", "name": "f", "arguments": ""}
    body = {"model": "fake", "input": [*same("0", "1"), call, *same("2")]}
    _, response = await ask(api, "POST", V1, body)
    place = f"{V1}/{response['id']}/input_items"
    _, listed = await ask(api, "GET", f"{place}?order=asc")
    ids = [item["id"] for item in listed["data"]]
    assert ids[0] == "msg-0"
    assert [id.split("_")[0] for id in ids[1:]] == ["msg", "fc", "msg"]
    assert len(set(ids)) == 4
    body["input"] = same("0", "1", "2")
    _, response = await ask(api, "POST", V1, body)
    texts = await paged(api, f"{V1}/{response['id']}/input_items", order)
    assert texts == (["0", "1", "2"] if order == "asc" else ["2", "1", "0"])


# Conversations and their items.


@pytest.fixture
async def conversation(make):
    api = make()
    body = {"items": ITEMS, "metadata": {"topic": "x"}}
    created = await api.answer("/v1/conversations", body)
    return api, created


async def test_conversation_is_created_updated_and_deleted(conversation):
    api, created = conversation
    place = f"/v1/conversations/{created['id']}"
    assert created == {
        "id": created["id"],
        "object": "conversation",
        "created_at": 1_750_000_000,
        "metadata": {"topic": "x"},
    }
    assert created["id"].startswith("conv_")
    assert await ask(api, "GET", place) == (200, created)
    updated = {**created, "metadata": {"topic": "y"}}
    assert await ask(api, "POST", place, {"metadata": {"topic": "y"}}) == (200, updated)
    assert await ask(api, "GET", place) == (200, updated)
    deleted = {"id": created["id"], "object": "conversation.deleted", "deleted": True}
    assert await ask(api, "DELETE", place) == (200, deleted)
    assert (await ask(api, "GET", place))[0] == 404


async def test_items_of_a_conversation_are_listed_added_and_deleted(conversation):
    api, created = conversation
    place = f"/v1/conversations/{created['id']}/items"
    _, listed = await ask(api, "GET", place)
    assert [item["content"][0]["text"] for item in listed["data"]] == ["4", "3", "2", "1", "0"]
    added = await api.answer(place, {"items": [{"role": "user", "content": "5"}]})
    [item] = added["data"]
    assert added["first_id"] == added["last_id"] == item["id"]
    assert await ask(api, "GET", f"{place}/{item['id']}") == (200, item)
    assert await ask(api, "DELETE", f"{place}/{item['id']}") == (200, created)
    for method in ("GET", "DELETE"):
        assert (await ask(api, method, f"{place}/{item['id']}"))[0] == 404
    _, listed = await ask(api, "GET", f"{place}?limit=1")
    assert listed["data"][0]["content"][0]["text"] == "4"
    assert listed["has_more"] is True


async def test_empty_conversation_has_an_empty_page(make):
    api = make()
    status, created = await ask(api, "POST", "/v1/conversations", b"")
    assert (status, created["metadata"]) == (200, {})
    _, listed = await ask(api, "GET", f"/v1/conversations/{created['id']}/items")
    page = {"object": "list", "data": [], "first_id": None, "last_id": None}
    assert listed == {**page, "has_more": False}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": []}),
        ("GET", "/items/msg_x", None),
        ("DELETE", "/items/msg_x", None),
    ],
)
async def test_unknown_conversation_is_not_found(make, method, path, body):
    status, answer = await ask(make(), method, f"/v1/conversations/conv_x{path}", body)
    assert status == 404
    assert "not found" in answer["error"]["message"]


async def test_conversations_are_listed_by_tenant_and_page(make):
    api = make()
    topics = ["a", "b", "c"]
    for topic in topics:
        await ask(api, "POST", "/v1/conversations", {"metadata": {"topic": topic}})
    await ask(api, "POST", "/v1/conversations", {"metadata": {"topic": "d"}}, tenant="other")
    _, page = await ask(api, "GET", "/v1/conversations?limit=2")
    assert [one["metadata"]["topic"] for one in page["data"]] == ["c", "b"]
    assert page["has_more"] is True
    _, rest = await ask(api, "GET", f"/v1/conversations?limit=2&after={page['last_id']}")
    assert [one["metadata"]["topic"] for one in rest["data"]] == ["a"]
    assert rest["has_more"] is False
    _, oldest = await ask(api, "GET", "/v3/conversations?order=asc")
    assert [one["metadata"]["topic"] for one in oldest["data"]] == topics
    for query, param in (("limit=0", "limit"), ("after=conv_x", "after")):
        status, answer = await ask(api, "GET", f"/v1/conversations?{query}")
        assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("place", "body", "param"),
    [
        ("", {"metadata": {"a": 5}}, "metadata.a"),
        ("", {"items": 5}, "items"),
        ("", {"items": [{"role": "nobody", "content": ""}]}, "items[0].role"),
        ("", {"items": [{"id": "msg_x"}]}, "items"),
        ("", {"items": ITEMS * 5}, "items"),
        ("/{}", {}, "metadata"),
        ("/{}/items", {}, "items"),
    ],
)
async def test_invalid_conversation_is_refused_and_changes_no_other(
    conversation, place, body, param
):
    api, created = conversation
    assert await api.refused(f"/v1/conversations{place.format(created['id'])}", body) == param
    assert await ask(api, "GET", f"/v1/conversations/{created['id']}") == (200, created)


@pytest.mark.parametrize("metadata", [None, {}])
async def test_metadata_can_be_emptied(conversation, metadata):
    api, created = conversation
    place = f"/v1/conversations/{created['id']}"
    assert (await ask(api, "POST", place, {"metadata": metadata}))[1]["metadata"] == {}


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_items_of_a_conversation_have_ids_of_their_own(make, order):
    api = make("done")
    _, created = await ask(api, "POST", "/v1/conversations", {"items": same("0", "1")})
    place = f"/v1/conversations/{created['id']}/items"
    status, added = await ask(api, "POST", place, {"items": same("2")})
    assert (status, added["first_id"] == "msg-0") == (200, False)
    body = {"model": "fake", "conversation": created["id"], "input": same("3")}
    assert (await ask(api, "POST", V1, body))[0] == 200
    texts = await paged(api, place, order)
    expected = ["0", "1", "2", "3", "done"]
    assert texts == (expected if order == "asc" else expected[::-1])
    await ask(api, "DELETE", f"{place}/msg-0")
    assert await paged(api, place, "asc") == expected[1:]


# A state that was read only in part since the start: other objects may exist.

MESSAGE = {"type": "message", "role": "user", "content": "a"}
REFERENCE = {"type": "item_reference", "id": "msg_a"}
NAMES_UNREAD = (
    ("GET", "/responses/resp_a", None),
    ("GET", "/responses/resp_a?stream=true", None),
    ("GET", "/responses/resp_a/input_items", None),
    ("POST", "/responses/resp_a/cancel", {}),
    ("DELETE", "/responses/resp_a", None),
    ("POST", "/responses", {"previous_response_id": "resp_a", "input": "a"}),
    ("POST", "/responses", {"conversation": "conv_a", "input": "a"}),
    ("POST", "/responses", {"input": [REFERENCE]}),
    ("POST", "/responses", {"input": "a", "request_id": "resp_a"}),
    ("POST", "/responses/input_tokens", {"previous_response_id": "resp_a"}),
    ("POST", "/responses/compact", {"previous_response_id": "resp_a"}),
    ("GET", "/conversations", None),
    ("GET", "/conversations/conv_a", None),
    ("POST", "/conversations/conv_a", {"metadata": {}}),
    ("DELETE", "/conversations/conv_a", None),
    ("GET", "/conversations/conv_a/items", None),
    ("POST", "/conversations/conv_a/items", {"items": [MESSAGE]}),
    ("GET", "/conversations/conv_a/items/msg_a", None),
    ("DELETE", "/conversations/conv_a/items/msg_a", None),
)


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
@pytest.mark.parametrize(("method", "path", "body"), NAMES_UNREAD)
async def test_unread_state_answers_503_instead_of_404(
    make, make_state, prefix, method, path, body
):
    api = make(state=make_state(unread="no luck"))
    if body is not None and path.startswith("/responses"):
        body = {"model": "fake", **body}
    response = await api.call(method, f"{prefix}{path}", body, FakeStream())
    assert response.status == 503
    assert ("Retry-After", "1") in response.headers
    assert b"the stored data cannot be read yet: no luck" in response.body
