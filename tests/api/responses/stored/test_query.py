"""Queries of lists, and pages of them."""

from __future__ import annotations

import pytest

from tests.api.responses.conftest import ask
from tests.api.responses.test_response_by_id import ITEMS, V1


@pytest.fixture
async def kept(make):
    api = make()
    status, response = await ask(api, "POST", V1, {"model": "fake", "input": ITEMS})
    assert status == 200
    return api, response


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
async def test_input_items(kept, query, expected, has_more):
    api, response = kept
    status, body = await ask(api, "GET", f"{V1}/{response['id']}/input_items?{query}")
    assert status == 200
    assert "".join(item["content"][0]["text"] for item in body["data"]) == expected
    assert body["object"] == "list"
    assert body["has_more"] is has_more
    assert body["first_id"] == body["data"][0]["id"]
    assert body["last_id"] == body["data"][-1]["id"]


async def test_pages_follow_each_other(kept):
    api, response = kept
    place = f"{V1}/{response['id']}/input_items?limit=2"
    texts = []
    after = ""
    while True:
        _, body = await ask(api, "GET", f"{place}{after}")
        texts += [item["content"][0]["text"] for item in body["data"]]
        if not body["has_more"]:
            break
        after = f"&after={body['last_id']}"
    assert texts == ["4", "3", "2", "1", "0"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=%D9%A3", "limit"),
        ("order=up", "order"),
        ("after=msg_none", "after"),
        ("include=everything", "include[0]"),
        ("x=1&" * 200, None),
    ],
)
async def test_queries_that_are_refused(kept, query, param):
    api, response = kept
    status, body = await ask(api, "GET", f"{V1}/{response['id']}/input_items?{query}")
    assert (status, body["error"]["param"]) == (400, param)
