"""Conversations and their items."""

from __future__ import annotations

import pytest

from tests.api.responses.conftest import ask
from tests.api.responses.test_response_by_id import ITEMS, V1, paged, same


@pytest.fixture
async def conversation(make):
    api = make()
    body = {"items": ITEMS, "metadata": {"topic": "x"}}
    status, created = await ask(api, "POST", "/v1/conversations", body)
    assert status == 200
    return api, created


async def test_a_conversation(conversation):
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


async def test_its_items(conversation):
    api, created = conversation
    place = f"/v1/conversations/{created['id']}/items"
    _, listed = await ask(api, "GET", place)
    assert [item["content"][0]["text"] for item in listed["data"]] == ["4", "3", "2", "1", "0"]
    status, added = await ask(api, "POST", place, {"items": [{"role": "user", "content": "5"}]})
    assert status == 200
    [item] = added["data"]
    assert added["first_id"] == added["last_id"] == item["id"]
    assert await ask(api, "GET", f"{place}/{item['id']}") == (200, item)
    assert await ask(api, "DELETE", f"{place}/{item['id']}") == (200, created)
    for method in ("GET", "DELETE"):
        assert (await ask(api, method, f"{place}/{item['id']}"))[0] == 404
    _, listed = await ask(api, "GET", f"{place}?limit=1")
    assert listed["data"][0]["content"][0]["text"] == "4"
    assert listed["has_more"] is True


async def test_an_empty_conversation(make):
    api = make()
    status, created = await ask(api, "POST", "/v1/conversations", b"")
    assert (status, created["metadata"]) == (200, {})
    _, listed = await ask(api, "GET", f"/v1/conversations/{created['id']}/items")
    assert listed == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


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
async def test_there_is_no_such_conversation(make, method, path, body):
    status, answer = await ask(make(), method, f"/v1/conversations/conv_x{path}", body)
    assert status == 404
    assert "not found" in answer["error"]["message"]


async def test_the_list_of_conversations(make):
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
    ("body", "param"),
    [
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"items": 5}, "items"),
        ({"items": [{"role": "nobody", "content": ""}]}, "items[0].role"),
        ({"items": [{"id": "msg_x"}]}, "items"),
        ({"items": ITEMS * 5}, "items"),
    ],
)
async def test_conversations_that_are_refused(make, body, param):
    status, answer = await ask(make(), "POST", "/v1/conversations", body)
    assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("body", "expected"), [({}, None), ({"metadata": None}, {}), ({"metadata": {}}, {})]
)
async def test_metadata_is_not_lost_by_mistake(conversation, body, expected):
    api, created = conversation
    place = f"/v1/conversations/{created['id']}"
    status, answer = await ask(api, "POST", place, body)
    if expected is None:
        assert (status, answer["error"]["param"]) == (400, "metadata")
        expected = created["metadata"]
    assert (await ask(api, "GET", place))[1]["metadata"] == expected


async def test_items_are_required_to_add_some(conversation):
    api, created = conversation
    place = f"/v1/conversations/{created['id']}/items"
    status, answer = await ask(api, "POST", place, {})
    assert (status, answer["error"]["param"]) == (400, "items")


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
