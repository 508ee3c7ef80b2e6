"""What is kept of a response, and what is not."""

from __future__ import annotations

import pytest

from tests.api.responses.conftest import ask

V1 = "/v1/responses"
ITEMS = [{"role": "user", "content": f"{number}"} for number in range(5)]


@pytest.fixture
async def kept(make):
    api = make()
    status, response = await ask(api, "POST", V1, {"model": "fake", "input": ITEMS})
    assert status == 200
    return api, response


@pytest.mark.parametrize("path", [V1, "/v3/responses"])
async def test_get_and_delete(kept, path):
    api, response = kept
    place = f"{path}/{response['id']}"
    assert await ask(api, "GET", place) == (200, response)
    deleted = {"id": response["id"], "object": "response", "deleted": True}
    assert await ask(api, "DELETE", place) == (200, deleted)
    for method in ("GET", "DELETE"):
        assert (await ask(api, method, place))[0] == 404
    assert (await ask(api, "GET", f"{place}/input_items"))[0] == 404
    assert (await ask(api, "POST", f"{place}/cancel"))[0] == 404


async def test_what_is_not_stored_is_not_there(make):
    api = make()
    body = {"model": "fake", "input": "Hi", "store": False}
    _, response = await ask(api, "POST", V1, body)
    status, body = await ask(api, "GET", f"{V1}/{response['id']}")
    assert status == 404
    assert body["error"]["type"] == "not_found_error"
    assert response["id"] in body["error"]["message"]


async def test_ids_of_other_kinds_are_not_there(make):
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


async def test_what_is_too_large_to_be_kept(small):
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
    """The texts of the items, asked for one by one."""
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
