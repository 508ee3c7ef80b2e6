"""The Responses API with fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from fastovms.http.messages import Response
from fastovms.parts.responses import background, events
from fastovms.parts.responses.background import BackgroundRuns, ResponsesState
from fastovms.parts.responses.resumption import LeaseKeeper, Resumer, RunRestorer
from tests.api.chat_models import PARAMETERS, chat_model
from tests.fakes import FakeStream, model_info
from tests.replicas import LEASE, InPostgres, InSqlite, ReplicaStore, SharedState
from tests.state.conftest import Clock, postgres, postgres_server, test_database

__all__ = ["postgres", "postgres_server", "test_database"]  # fixtures of the state's tests

V1 = "/v1/responses"
V3 = "/v3/responses"
BODY = {"model": "fake", "input": "Hi"}
BACKGROUND = {**BODY, "background": True}
TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
ITEMS = [{"role": "user", "content": f"{number}"} for number in range(5)]


@pytest.fixture
def make(make_api, make_state) -> Callable[..., Any]:
    """Returns an API with a chat model; `state=None` stores nothing."""

    def make_responses(script="Hello!", *, chat=None, defaults=None, context=2000, **options):
        model = model_info(max_model_len=context, defaults=defaults)
        options.setdefault("state", make_state())
        return make_api(script, model=model, chat=chat or chat_model(), **options)

    return make_responses


def paused(make, script: str = "Hello!", *, num_steps: int = 3, **options):
    """Returns an API whose model generates a few tokens and waits."""
    api = make(script, **options)
    api.steps_left = num_steps
    step = api.backend.step

    def limited() -> None:
        api.steps_left -= 1
        api.backend.paused = api.steps_left < 0
        step()

    api.backend.step = limited
    return api


def resume(api, num_steps: int = 1_000_000) -> None:
    api.steps_left = num_steps
    api.backend.step()


class Replica:
    """One of several servers that share a state.

    Attributes:
        api: its routes, with a model that makes `api.steps_left` steps.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        store: ReplicaStore,
        clock: Clock,
        *,
        resumes: bool,
        **options: Any,
    ) -> None:
        self.store = store
        self.runs = BackgroundRuns(10)
        self.state = ResponsesState(store, self.runs, resumes)
        first_id = int(store._replica.id, 16) << 64
        options.setdefault("script", "Hello!")
        self.api = paused(make, num_steps=0, state=self.state, first_id=first_id, **options)
        self.resumer = Resumer(store, self.runs, RunRestorer(self.api.context, store))
        self.keeper = LeaseKeeper(store, self.runs, self.resumer if resumes else None, clock)

    async def renew(self) -> None:
        await self.keeper.renew(LEASE)


@pytest.fixture(params=["sqlite", "postgres"])
async def make_replicas(request, make, monkeypatch):
    """Returns replicas, which renew their leases when a test asks for it, and their clock."""
    monkeypatch.setattr(events, "SHARED_INTERVAL", 0.0)
    monkeypatch.setattr(background, "_RETRY", 0.01)
    clock = Clock()
    shared: SharedState
    if request.param == "sqlite":
        shared = InSqlite(clock)
    else:
        shared = InPostgres(request.getfixturevalue("postgres"), clock)
    replicas = []

    def make_some(*ids: str, resumes: bool = False, **options) -> tuple[list[Replica], Clock]:
        replicas.extend(
            Replica(make, shared.replica(id), clock, resumes=resumes, **options) for id in ids
        )
        return replicas, clock

    yield make_some
    for replica in replicas:
        replica.store.error = None
        resume(replica.api)
        await replica.runs.drain(60)
    await shared.close()


async def ask(api, method: str, path: str, body: object = None, **context):
    """Returns the status and the body of an answer that is not streamed.

    Args:
        context: the tenant and the headers, or None.
    """
    response = await api.call(method, path, body, FakeStream(), **context)
    assert isinstance(response, Response)
    return response.status, orjson.loads(response.body)


@pytest.fixture
async def kept(make) -> tuple[Any, dict[str, Any]]:
    """Returns an API and a stored response to five items."""
    api = make()
    response = await api.answer(V1, {"model": "fake", "input": ITEMS})
    return api, response


async def stream_of(api, body: dict[str, Any], path: str = V1) -> list[Any]:
    """Returns the events of a streamed response."""
    stream = FakeStream()
    assert await api.call("POST", path, {**BODY, **body, "stream": True}, stream) is None
    assert stream.closed
    return stream.events


async def start(api, **fields) -> str:
    status, body = await ask(api, "POST", V1, {**BACKGROUND, **fields})
    assert (status, body["status"], body["background"]) == (200, "queued", True)
    assert (body["output"], body["usage"]) == ([], None)
    return body["id"]


async def get(api, id: str) -> dict:
    await asyncio.sleep(0)
    status, body = await ask(api, "GET", f"{V1}/{id}")
    assert status == 200
    return body


async def wait_for(api, id: str, *statuses: str) -> dict:
    for _ in range(10_000):
        body = await get(api, id)
        if body["status"] in statuses:
            return body
    raise AssertionError(f"still {body['status']}")


async def replayed(api, id: str, path: str = V1, **query) -> list:
    stream = FakeStream()
    parameters = "&".join(f"{name}={value}" for name, value in {"stream": "true", **query}.items())
    assert await api.call("GET", f"{path}/{id}?{parameters}", None, stream) is None
    assert stream.closed
    return stream.events
