"""The endpoints that generate: streams, models that come and go, what is counted."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from fastovms.errors import BackendUnavailable
from tests.api.ollama.ollama_requests import (
    ASKED,
    CHAT,
    GENERATE,
    ask,
    make,
    refused,
)
from tests.fakes import FakeStream

__all__ = ["make"]
EMPTY = ((CHAT, {"model": "fake", "messages": []}), (GENERATE, {"model": "fake"}))


class Holder:
    """Stands for what has models come and go."""

    loads_on_demand = True

    def __init__(self) -> None:
        self.moves: list[str] = []
        self.is_there = True

    def try_hold(self, name):
        self.moves.append(f"take {name}")
        return (lambda: self.moves.append(f"give back {name}")) if self.is_there else None

    async def hold(self, name):
        raise BackendUnavailable("not now")

    def dismiss(self, name):
        self.moves.append(f"dismiss {name}")


@pytest.mark.parametrize(("path", "body"), EMPTY)
async def test_a_request_for_nothing_moves_the_model(make, path, body, monkeypatch):
    for fields, reason, moves in (
        ({}, "load", ["take fake", "give back fake"]),
        ({"keep_alive": "5m"}, "load", ["take fake", "give back fake"]),
        ({"keep_alive": 0}, "unload", ["dismiss fake"]),
    ):
        api = make()
        monkeypatch.setattr("tests.api.conftest.make_request", admin(True))
        api.context.models.holder = holder = Holder()
        status, answer = await api.post(path, {**body, **fields})
        assert (status, answer["done"], answer["done_reason"]) == (200, True, reason)
        assert holder.moves == moves
        assert not api.backend.submitted


@pytest.mark.parametrize("loads_on_demand", [True, False])
async def test_only_who_may_has_a_model_leave(make, loads_on_demand, monkeypatch):
    for is_admin in (True, False):
        api = make()
        api.context.models.holder = holder = Holder()
        holder.loads_on_demand = loads_on_demand
        monkeypatch.setattr("tests.api.conftest.make_request", admin(is_admin))
        await ask(api, CHAT, {**ASKED, "keep_alive": 0})
        leaves = ["dismiss fake"] if is_admin and loads_on_demand else []
        assert holder.moves == ["take fake", *leaves, "give back fake"]


def admin(is_admin):
    from tests.fakes import make_request

    def make_admin_request(*args, **kwargs):
        request = make_request(*args, **kwargs)
        request.is_admin = is_admin
        return request

    return make_admin_request


@pytest.mark.parametrize(("path", "body"), EMPTY)
async def test_a_model_that_stays_is_said_to_stay(make, path, body):
    api = make()
    for is_loaded, reason in ((True, "load"), (False, "unload")):
        if not is_loaded:
            [known] = api.context.models.known
            known.served = None
        response = await api.call("POST", path, {**body, "keep_alive": 0})
        assert orjson.loads(response.body)["done_reason"] == reason
        assert "keep_alive changes nothing" in dict(response.headers)["Warning"]


async def test_a_model_that_cannot_be_loaded(make):
    api = make()
    api.context.models.holder = holder = Holder()
    holder.is_there = False
    stream = FakeStream()
    response = await api.call("POST", CHAT, ASKED, stream)
    assert response.status == 503
    assert not stream.started


async def test_a_client_that_leaves_frees_its_place(make):
    api, stream = make("a" * 1000), FakeStream()
    task = asyncio.ensure_future(api.call("POST", CHAT, ASKED, stream))
    await stream.first_write.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert api.backend.stats().num_running == 0
    assert task.cancelled()


async def test_requests_are_counted_and_logged(make):
    api = make()
    await ask(api, CHAT, {**ASKED, "options": {"num_ctx": 10**6}})
    fields = api.last_request.log_fields
    assert (fields["model"], fields["prompt_tokens"], fields["completion_tokens"]) == ("fake", 6, 7)
    assert api.metrics.finished["stop"] == 1


async def test_what_is_not_done_is_told(make):
    response = await make().call("POST", CHAT, {**ASKED, "stream": False,
                                                "options": {"num_ctx": 10**6}})  # fmt: skip
    assert "options.num_ctx is 1000000" in dict(response.headers)["Warning"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_bodies_that_are_none(make, path):
    assert "JSON object" in await refused(make(), path, [])
    assert "options must be an object" in await refused(
        make(), path, {"model": "fake", "options": 5}
    )
