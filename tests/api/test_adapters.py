"""Tests of `fastovms/parts/adapters/endpoints.py`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastovms.api.served import KnownModel, ServedModel, no_hold
from fastovms.errors import BackendUnavailable, ConfigurationError
from fastovms.params import Adapter
from fastovms.parts.adapters.backend import AdapterBackend
from tests.adapters import BAD_NAMES
from tests.fakes import model_info

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class FakeAdapters:
    """Adapters with names and nothing else."""

    backend_of = staticmethod(AdapterBackend)

    def __init__(self, *names: str) -> None:
        self.adapters: dict[str, Adapter] = {}
        self.error: Exception | None = None
        for name in names:
            self._add(name, Path("/adapters") / name)

    def _add(self, name: str, path: Path) -> Adapter:
        number = len(self.adapters) + 1
        adapter = Adapter(name, str(path), name.encode().ljust(32), number, 1_800_000_000)
        self.adapters[name] = adapter
        return adapter

    async def load(self, name: str, path: Path) -> Adapter:
        if self.error is not None:
            raise self.error
        return self._add(name, path)

    async def unload(self, name: str) -> None:
        if self.error is not None:
            raise self.error
        del self.adapters[name]


@pytest.fixture
def api(make_api: Any) -> Any:
    api = make_api("hello", model=replace(model_info(), fingerprint="f"))
    [known] = api.context.models.known
    known.served = replace(known.served, adapters=FakeAdapters("one"))
    return api


def adapters_of(api: Any) -> FakeAdapters:
    [known] = api.context.models.known
    found: FakeAdapters = known.served.adapters
    return found


async def get(api: Any, path: str) -> Any:
    response = await api.call("GET", path)
    assert response.status == 200
    return json.loads(response.body)


async def ask(api: Any, path: str, body: object) -> tuple[int, str]:
    response = await api.call("POST", path, body, is_admin=True)
    return response.status, response.body.decode()


async def test_adapters_are_models(api: Any) -> None:
    listed = await get(api, "/v1/models")
    assert [(card["id"], card["parent"], card["root"]) for card in listed["data"]] == [
        ("fake", None, "fake"),
        ("one", "fake", "/adapters/one"),
    ]
    assert listed["data"][1]["created"] == 1_800_000_000
    assert (await get(api, "/v1/models/one"))["parent"] == "fake"
    assert [card["name"] for card in (await get(api, "/api/tags"))["models"]] == ["fake", "one"]
    body = {"prompt": "a", "max_tokens": 3}
    for name in ("fake", "one", "one:latest"):
        status, answer = await api.post("/v1/completions", {"model": name, **body})
        assert (status, answer["model"]) == (200, name.removesuffix(":latest"))
    used = [request.adapter and request.adapter.name for request in api.backend.submitted]
    assert used == [None, "one", "one"]
    status, answer = await api.post("/v1/completions", {"model": "two", **body})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


class Holder:
    """Loads the model at the first request that waits for it."""

    loads_on_demand = True

    def __init__(self, known: KnownModel, served: Any) -> None:
        self._known, self._served = known, served

    def try_acquire(self, name: str) -> Any:
        return None if self._known.served is None else no_hold()

    async def acquire(self, name: str, client: str) -> Any:
        assert name == self._known.name
        self._known.served = self._served
        return no_hold()


async def test_a_model_that_is_not_in_memory_has_adapters(api: Any) -> None:
    models = api.context.models
    [known] = models.known
    models.holder, known.served = Holder(known, known.served), None
    assert models.get("one") is None
    known.lora_modules = {"one": Path("/adapters/one"), "two": Path("/adapters/two")}
    listed = await get(api, "/v1/models")
    assert [(card["id"], card["parent"], card["root"]) for card in listed["data"]] == [
        ("fake", None, "fake"),
        ("one", "fake", "/adapters/one"),
        ("two", "fake", "/adapters/two"),
    ]
    found, gone = models.get("one"), models.get("two")
    status, answer = await api.post("/v1/completions", {"model": "one", "prompt": "a"})
    assert (status, answer["model"]) == (200, "one")
    assert [request.adapter.name for request in api.backend.submitted] == ["one"]
    assert found.served is None
    assert found.refreshed().served.info.name == "one"
    with pytest.raises(BackendUnavailable, match="the adapter two is no longer served"):
        gone.refreshed()


async def test_a_model_hides_an_adapter_of_its_name(api: Any) -> None:
    models = api.context.models
    models.set_known([*models.known, KnownModel("one")])
    listed = await get(api, "/v1/models")
    assert [(card["id"], card["parent"]) for card in listed["data"]] == [
        ("fake", None),
        ("one", None),
    ]
    status, _ = await ask(api, UNLOAD, {"lora_name": "one"})
    assert status == 200


async def test_prefix_salt_separates_adapters(api: Any) -> None:
    for name in ("fake", "one"):
        await api.post("/v1/completions", {"model": name, "prompt": "a", "cache_salt": "s"})
    plain, adapted = (request.prefix_salt for request in api.backend.submitted)
    assert plain == b"s"
    assert adapted == b"\xff" + b"one".ljust(32) + b"s"


async def test_loading_and_unloading(api: Any) -> None:
    status, text = await ask(api, LOAD, {"lora_name": "two", "lora_path": "/adapters/2"})
    assert (status, text) == (200, "Success: LoRA adapter 'two' added successfully.")
    await api.answer("/v1/completions", {"model": "two", "prompt": "a"})
    status, text = await ask(api, UNLOAD, {"lora_name": "two", "lora_int_id": 2})
    assert (status, text) == (200, "Success: LoRA adapter 'two' removed successfully.")
    status, _ = await api.post("/v1/completions", {"model": "two", "prompt": "a"})
    assert status == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (LOAD, {"lora_path": "/a"}, 400, "lora_name"),
        (LOAD, {"lora_name": "", "lora_path": "/a"}, 400, "lora_name"),
        (LOAD, {"lora_name": 5, "lora_path": "/a"}, 400, "lora_name"),
        (LOAD, {"lora_name": "x" * 257, "lora_path": "/a"}, 400, "lora_name"),
        (LOAD, {"lora_name": "a\nb", "lora_path": "/a"}, 400, "lora_name"),
        (LOAD, {"lora_name": "one", "lora_path": "/a"}, 400, "lora_name"),
        (LOAD, {"lora_name": "fake", "lora_path": "/a"}, 400, "lora_name"),
        (LOAD, {"lora_name": "two"}, 400, "lora_path"),
        (LOAD, {"lora_name": "two", "lora_path": "/a\0b"}, 400, "lora_path"),
        (LOAD, {"lora_name": "two", "lora_path": "/a", "load_inplace": True}, 400, "load_inplace"),
        (LOAD, {"lora_name": "two", "lora_path": "/a", "base_model_name": "no"}, 404, "model"),
        (
            LOAD,
            {"lora_name": "two", "lora_path": "/a", "base_model_name": "one"},
            400,
            "base_model_name",
        ),
        (UNLOAD, {}, 400, "lora_name"),
        (UNLOAD, {"lora_name": "two"}, 404, "lora_name"),
        (UNLOAD, {"lora_name": "fake"}, 404, "lora_name"),
        ("/v1/models/one/unload", {}, 400, None),
    ],
)
async def test_invalid_adapter_request_is_refused_and_changes_no_adapter(
    api: Any, path: str, body: Any, status: int, param: str | None
) -> None:
    found, answer = await ask(api, path, body)
    assert (found, json.loads(answer)["error"]["param"]) == (status, param)
    assert list(adapters_of(api).adapters) == ["one"]


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name.isascii()], ids=ascii)
async def test_invalid_adapter_name_is_refused(api: Any, name: str) -> None:
    for path in (LOAD, UNLOAD):
        status, answer = await ask(api, path, {"lora_name": name, "lora_path": "/a"})
        assert (status, json.loads(answer)["error"]["param"]) == (400, "lora_name")


async def test_errors_are_passed_on(api: Any) -> None:
    adapters_of(api).error = ConfigurationError("the adapter two is damaged")
    status, answer = await ask(api, LOAD, {"lora_name": "two", "lora_path": "/a"})
    assert status == 400
    assert json.loads(answer)["error"]["message"] == "the adapter two is damaged"
    adapters_of(api).error = BackendUnavailable("requests still run")
    status, _ = await ask(api, UNLOAD, {"lora_name": "one"})
    assert status == 503


async def test_a_name_is_changed_once_at_a_time(api: Any) -> None:
    adapters, begun, go = adapters_of(api), asyncio.Event(), asyncio.Event()
    load = adapters.load

    async def load_later(name: str, path: Path) -> Adapter:
        begun.set()
        await go.wait()
        return await load(name, path)

    adapters.load = load_later  # type: ignore[method-assign]
    body = {"lora_name": "two", "lora_path": "/adapters/2"}
    first = asyncio.ensure_future(ask(api, LOAD, body))
    await begun.wait()
    status, text = await ask(api, LOAD, body)
    assert status == 400
    assert (
        'lora_name is \\"two\\", an adapter that is being loaded or unloaded; retry later' in text
    )
    go.set()
    assert (await first)[0] == 200
    assert (await ask(api, UNLOAD, {"lora_name": "two"}))[0] == 200


async def test_the_model_stays_in_memory_during_a_load(api: Any) -> None:
    models = api.context.models
    held: list[str] = []
    [known] = models.known
    adapters, holder = adapters_of(api), Holder(known, known.served)
    models.holder, load = holder, adapters.load

    def hold(name: str) -> Any:
        held.append(name)
        return held.clear

    holder.try_acquire = hold  # type: ignore[method-assign]

    async def load_held(name: str, path: Path) -> Adapter:
        assert held == ["fake"]
        return await load(name, path)

    adapters.load = load_held  # type: ignore[method-assign]
    assert (await ask(api, LOAD, {"lora_name": "two", "lora_path": "/a"}))[0] == 200
    assert held == []
    holder.try_acquire = lambda name: None  # type: ignore[method-assign]
    status, text = await ask(api, LOAD, {"lora_name": "three", "lora_path": "/a"})
    assert status == 503
    assert "the model fake is being unloaded" in text


async def test_why_a_model_has_no_adapters_is_named(api: Any) -> None:
    body = {"lora_name": "two", "lora_path": "/a"}
    status, text = await ask(api, LOAD, body | {"base_model_name": "one"})
    assert status == 400
    assert 'base_model_name is \\"one\\", which is an adapter of fake' in text
    [known] = api.context.models.known
    known.served = None
    for named in ({"base_model_name": "fake"}, {}):
        status, text = await ask(api, LOAD, body | named)
        assert status == 400
        assert "is not in memory: load it first" in text


async def test_a_failed_engine_leaves_other_models_alone(api: Any, make_api: Any) -> None:
    models = api.context.models
    [first] = models.known
    other = make_api("hello", model=replace(model_info(), name="other"))
    [second] = other.context.models.known
    second.served = replace(second.served, adapters=FakeAdapters("three"))
    models.set_known([first, second])
    body = {"lora_name": "two", "lora_path": "/a"}
    status, text = await ask(api, LOAD, body)
    assert (status, json.loads(text)["error"]["param"]) == (400, "base_model_name")
    api.backend.fail("it is stuck")
    assert (await ask(api, LOAD, body))[0] == 200
    assert list(second.served.adapters.adapters) == ["three", "two"]
    assert (await ask(api, UNLOAD, {"lora_name": "three"}))[0] == 200
    for path, refused in (
        (LOAD, body | {"lora_name": "four", "base_model_name": "fake"}),
        (UNLOAD, {"lora_name": "one"}),
    ):
        status, text = await ask(api, path, refused)
        assert status == 503
        assert "the engine of fake has failed: it is stuck" in text
    assert list(adapters_of_model(first)) == ["one"]
    other.backend.fail("it is stuck, too")
    status, _ = await ask(api, LOAD, body | {"lora_name": "four"})
    assert status == 503


def adapters_of_model(known: KnownModel) -> dict[str, Adapter]:
    assert isinstance(known.served, ServedModel)
    assert isinstance(known.served.adapters, FakeAdapters)
    return known.served.adapters.adapters


async def test_loading_an_adapter_without_enable_lora_is_400(make_api: Any) -> None:
    api = make_api("hello")
    status, answer = await ask(api, LOAD, {"lora_name": "two", "lora_path": "/a"})
    assert status == 400
    assert "--enable-lora" in answer


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_they_are_an_operators(api: Any, path: str) -> None:
    response = await api.call("POST", path, {"lora_name": "one"}, tenant="t")
    assert response.status == 403
