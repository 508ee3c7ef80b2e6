"""What the handlers share: ids, times and models."""

from __future__ import annotations

import asyncio

from tests.api.completion_requests import BODY, V1, V3


async def test_the_clients_request_id(make_api):
    api = make_api("x" * 60)
    api.backend.paused = True
    body = {**BODY, "request_id": "mine"}
    answers = [asyncio.create_task(api.post(V1, body)) for _ in range(2)]
    await asyncio.sleep(0)
    api.backend.paused = False
    api.backend.step()
    assert [(await answer)[1]["id"] for answer in answers] == ["cmpl-mine", "cmpl-mine"]
    ids = [request.request_id for request in api.backend.submitted]
    assert len(set(ids)) == 2, "two clients may choose the same id"
    assert "id" not in (await api.post(V3, body))[1]


async def test_model_may_be_left_out_in_openais_dialect(make_api):
    status, body = await make_api().post(V1, {"prompt": "a"})
    assert (status, body["model"]) == (200, "fake")
