"""The affinity keys of ids."""

from __future__ import annotations

import pytest

from fastovms.api.responses.affinity import AFFINITY_HEADER, with_affinity
from fastovms.http.routing.messages import Headers
from tests.api.responses.conftest import ask

NEW = "f" * 32
KEY, OTHER = "0a1b2c3d", "99999999"


@pytest.mark.parametrize(
    ("continued", "header", "expected"),
    [
        (None, None, NEW[:8]),
        (None, KEY, KEY),
        ("resp_" + KEY + "e" * 24, None, KEY),
        ("resp-" + KEY + "e" * 24, OTHER, KEY),
        ("conv_" + KEY + "e" * 24, OTHER, KEY),
        ("resp_mine", KEY, KEY),
        ("resp_mine", None, NEW[:8]),
        (None, "", NEW[:8]),
        (None, KEY.upper(), NEW[:8]),
        (None, KEY + "0", NEW[:8]),
        (None, f"{KEY}, {OTHER}", NEW[:8]),
        (None, "../../..", NEW[:8]),
    ],
)
def test_the_key_of_an_id(continued, header, expected):
    headers = Headers([] if header is None else [(AFFINITY_HEADER.lower(), header)])
    assert with_affinity(NEW, headers, continued) == expected + NEW[8:]


def digits(id: str) -> tuple[str, str]:
    """The key of an id and the rest."""
    return id[5:13], id[13:]


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
async def test_a_chain_has_one_key(make, prefix):
    api = make()
    body = {"model": "fake", "input": "Hi"}

    async def made(key: str, **fields: object) -> str:
        headers = {AFFINITY_HEADER: key}
        path = f"{prefix}/responses"
        status, response = await ask(api, "POST", path, {**body, **fields}, headers=headers)
        assert status == 200
        return response["id"]

    first = await made(KEY)
    second = await made(OTHER, previous_response_id=first)
    third = await made(OTHER, previous_response_id=second)
    assert {digits(id)[0] for id in (first, second, third)} == {KEY}
    assert len({digits(id)[1] for id in (first, second, third)}) == 3
    own = await made(KEY, request_id="resp_mine")
    assert own == "resp_mine"
    assert digits(await made(OTHER, previous_response_id=own))[0] == OTHER


async def test_a_conversation_has_one_key(make):
    api = make()
    headers = {AFFINITY_HEADER: KEY}
    _, conversation = await ask(api, "POST", "/v1/conversations", {}, headers=headers)
    assert digits(conversation["id"])[0] == KEY
    body = {"model": "fake", "input": "Hi", "conversation": conversation["id"]}
    _, response = await ask(api, "POST", "/v1/responses", body, headers={AFFINITY_HEADER: OTHER})
    assert digits(response["id"])[0] == KEY
