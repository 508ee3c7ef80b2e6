"""Tests of `fastovms/app/supply.py`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from fastovms.api.served import ServedModels
from fastovms.app.compiling import weights_size
from fastovms.app.supply import ModelSupply, find_each, plan_models
from fastovms.cli.main import main
from fastovms.config import EngineConfig
from fastovms.engine.model.devices import GIB
from fastovms.errors import ConfigurationError
from fastovms.parts.several_models.model_pool import ModelChanges, ModelPlan
from fastovms.server_config import DEMO_MODEL, ModelConfig, ModelSource, ResidencyConfig
from tests.encoder_models import encoder_dir

# Properties of models that are known before they are loaded, and models of a list that can be
# served.


DEMO = ModelConfig(DEMO_MODEL, ("a", "b"), EngineConfig(cache_size=0.5))
WEIGHTS = sum(path.stat().st_size for path in DEMO_MODEL.glob("*.bin"))


def find(source: ModelSource) -> ModelConfig:
    return ModelConfig(Path(source.location), source.names)


def test_names_and_sizes_are_known_before_loading(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"x" * 7)
    demo, other = plan_models([DEMO, ModelConfig(gguf, ("g",))], ResidencyConfig())
    assert demo.known.names == ("a", "b")
    assert demo.known.max_model_len is not None
    assert demo.known.capabilities is None
    assert demo.size == WEIGHTS + GIB // 2
    assert (demo.file_size, other.file_size) == (WEIGHTS, 7)
    assert (other.known.max_model_len, other.size) == (None, 7)
    assert weights_size(ModelConfig(gguf, ("g",), EngineConfig(draft_model=DEMO_MODEL))) == (
        WEIGHTS + 7
    )


def test_capabilities_of_encoders_are_known_before_loading() -> None:
    configs = [ModelConfig(encoder_dir(), ("e",)), ModelConfig(encoder_dir(1), ("r",))]
    plans = plan_models(configs, ResidencyConfig(max_loaded_models=1))
    assert [plan.known.capabilities for plan in plans] == [("embedding",), ("rerank",)]
    with pytest.raises(ConfigurationError, match=r"e takes about 0\.0 GiB: --model-memory"):
        plan_models(configs, ResidencyConfig(model_memory=1))


def test_caches_of_automatic_size_share_the_memory() -> None:
    automatic = ModelConfig(DEMO_MODEL, ("c",))
    [plan] = plan_models([automatic], ResidencyConfig(model_memory=GIB, max_loaded_models=2))
    assert plan.size == WEIGHTS + (GIB - WEIGHTS) // 2 // 2
    with pytest.raises(ConfigurationError, match=r"a takes about 0\.5 GiB with its KV"):
        plan_models([DEMO], ResidencyConfig(model_memory=GIB // 2))


def test_a_model_at_fault_leaves_the_rest() -> None:
    sources = [
        ModelSource(str(DEMO_MODEL), ("good",)),
        ModelSource("/nowhere", ("a",)),
        ModelSource("/nowhere", ("new",)),
    ]
    found = find_each(sources, find, [DEMO], ResidencyConfig())
    assert [config.name for config in found.configs] == ["good", "a"]
    assert found.configs[1] is DEMO  # which is served, and remains so
    assert [fault.partition(":")[0] for fault in found.faults] == ["a", "new"]
    with pytest.raises(ConfigurationError, match="several models have the name good"):
        find_each([sources[0]] * 2, find, [], ResidencyConfig())


def test_a_model_that_is_too_large_leaves_the_rest() -> None:
    sources = [ModelSource("small", ("a",)), ModelSource("large", ("b",))]
    small, large = (
        ModelConfig(DEMO_MODEL, (name,), EngineConfig(cache_size=size))
        for name, size in (("a", 0.1), ("b", 2.0))
    )
    models = {"small": small, "large": large}
    residency = ResidencyConfig(model_memory=GIB)
    found = find_each(sources, lambda source: models[source.location], [], residency)
    assert found.configs == [small]
    assert found.faults == [
        "b: b takes about 2.0 GiB with its KV cache: --model-memory must be more than that, not "
        "1.0 GiB"
    ]
    assert [plan.known.name for plan in plan_models(found.configs, residency)] == ["a"]


# A real server with more models than fit into memory, whose list changes.


FLAGS = ("--port", "0", "--cache-size", "0.05", "--no-tune", "--state-dir", ":memory:")


def write_list(path: Path, **models: Path) -> None:
    listed = [{"config": {"name": name, "base_path": str(base)}} for name, base in models.items()]
    path.write_text(json.dumps({"model_config_list": listed}))


class Server:
    """A server process and its list of models."""

    def __init__(self, url: str, models: Path, pid: int) -> None:
        self.url = url
        self.models = models
        self.pid = pid

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        try:
            with urlopen(
                Request(self.url + path, data, headers, method=method), timeout=100
            ) as response:
                content = response.read()
                return response.status, json.loads(content) if content else None
        except HTTPError as error:
            return error.code, json.loads(error.read())

    def complete(self, name: str) -> int:
        body = {"model": name, "prompt": "Once", "max_tokens": 2}
        return self.ask("POST", "/v1/completions", body)[0]

    def held(self) -> tuple[int, int, int]:
        """Returns the numbers of threads, descriptors and child processes of a server."""
        process = Path(f"/proc/{self.pid}")
        children = (process / "task" / str(self.pid) / "children").read_text().split()
        return len(os.listdir(process / "task")), len(os.listdir(process / "fd")), len(children)

    def wait_for_metric(self, line: str) -> None:
        deadline = time.monotonic() + 100
        while f"fastovms_{line}\n" not in (text := self.metrics()):
            assert time.monotonic() < deadline, text
            time.sleep(0.02)

    def metrics(self) -> str:
        with urlopen(f"{self.url}/metrics", timeout=100) as response:
            text: str = response.read().decode()
            return text

    def states(self) -> dict[str, str]:
        statuses = self.ask("GET", "/v1/config")[1]
        return {name: one["model_version_status"][0]["state"] for name, one in statuses.items()}

    def loaded(self) -> list[str]:
        return [model["name"] for model in self.ask("GET", "/api/ps")[1]["models"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("models") / "config.json"
    write_list(path, a=DEMO_MODEL, b=DEMO_MODEL)
    flags = ["--max-loaded-models", "1", "--file-system-poll-wait-seconds", "0"]
    flags += ["--ping-interval", "0.05", "--prefix-cache-disk-size", "64M"]
    flags += ["--prefix-cache-dir", str(tmp_path_factory.mktemp("prefixes"))]
    with running(path, *flags) as server:
        yield server


@contextmanager
def running(models: Path, *flags: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "fastovms", "serve", "--config-path", str(models), *FLAGS, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Server(process.stdout.readline().split()[-1], models, process.pid)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("later", ["first", "second"])
async def test_a_list_that_changes_while_models_are_loaded_is_read_again(later: str) -> None:
    listed, loads, go = ["first"], threading.Event(), threading.Event()

    def load_models(*_: object, **__: object) -> ServedModels:
        loads.set()
        assert go.wait(100)
        raise ConfigurationError("broken")

    supply = ModelSupply(
        [],
        lambda source: ModelConfig(DEMO_MODEL, source.names),
        load_models,
        ResidencyConfig(),
        open_blocks=lambda: None,
        read_list=lambda: [ModelSource("", (name,)) for name in listed],
    )
    pool = supply.start(ServedModels())
    apply = pool.apply

    def apply_before_loads_end(plans: Sequence[ModelPlan]) -> ModelChanges:
        changes = apply(plans)
        if loads.is_set():
            go.set()
        return changes

    pool.apply = apply_before_loads_end  # type: ignore[method-assign]
    reloads = [asyncio.ensure_future(supply.reload())]
    await asyncio.to_thread(loads.wait, 100)
    listed[:] = [later]
    reloads += [asyncio.ensure_future(supply.reload()) for _ in range(2)]
    _, one, other = await asyncio.gather(*reloads)
    assert list(pool.configs) == [later]
    assert one is other
    assert one == (True, [f"the model {later} could not be loaded: broken"])
    await supply.close()


async def test_a_list_that_changes_while_models_load_is_read_afterwards(tmp_path: Path) -> None:
    """The change is signalled, or found in the file."""
    path = tmp_path / "config.json"
    for interval in (0.0, 0.01):
        path.write_text("{}")
        listed = ["a"]
        supply = ModelSupply(
            [],
            lambda source: ModelConfig(DEMO_MODEL, source.names),
            lambda models, **_: ServedModels(),
            ResidencyConfig(max_loaded_models=1, poll_interval=interval),
            open_blocks=lambda: None,
            list_path=path,
            read_list=lambda listed=listed: [ModelSource("", (name,)) for name in listed],
        )
        models = supply.load()
        listed[:] = ["b"]
        if interval:
            path.write_text("{ }")
        else:
            supply.reload_soon()
        pool = supply.start(models)
        async with asyncio.timeout(60):
            while list(pool.configs) != ["b"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await supply.close()


def test_models_come_and_go(server: Server) -> None:
    assert server.loaded() == []
    # The next request loads a model, so the server is ready.
    assert server.states() == {"a": "AVAILABLE", "b": "AVAILABLE"}
    assert server.ask("GET", "/v2/models/a/ready")[0] == 200
    with ThreadPoolExecutor(6) as clients:
        assert {*clients.map(server.complete, "ababab")} == {200}
    assert len(server.loaded()) == 1
    status, card = server.ask("POST", "/v1/models/a/load")
    assert (status, card["status"]) == (200, {"value": "loaded"})
    assert server.ask("GET", "/v2/models/a/ready") == (200, None)
    status, card = server.ask("POST", "/v1/models/a/unload")
    assert (status, card["status"]) == (200, {"value": "unloaded"})
    assert server.ask("POST", "/v1/models/c/load")[0] == 404


def test_a_stream_that_waits_for_its_model_gets_comments_and_then_its_tokens(
    server: Server,
) -> None:
    server.ask("POST", "/v1/models/b/load")
    body = {"model": "a", "prompt": "Once", "max_tokens": 2, "ignore_eos": True, "stream": True}
    headers = {"Content-Type": "application/json"}
    with urlopen(
        Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers), timeout=100
    ) as response:
        lines = [line.decode().rstrip() for line in response if line != b"\n"]
    assert lines[0].startswith(":")
    data = [
        line for line in lines if not line.startswith(":")
    ]  # they are also sent before slow tokens
    assert len(data) >= 2
    assert data[-1] == "data: [DONE]"


def test_a_model_that_is_back_finds_its_prompts_on_disk(server: Server) -> None:
    body = {"model": "a", "prompt": list(range(5, 325)), "max_tokens": 1}
    num_cached = []
    for _ in range(2):
        answer = server.ask("POST", "/v1/completions", body)[1]
        num_cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        server.wait_for_metric('prefix_cache_disk_blocks{model_name="a"} 10.0')
        server.ask("POST", "/v1/models/a/unload")
    assert num_cached == [0, 288]


@pytest.mark.nightly(but=("flags1",))
@pytest.mark.parametrize("flags", [("--backend", "genai"), ("--draft-model", str(DEMO_MODEL))])
def test_unloading_frees_threads_descriptors_and_processes(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    models = tmp_path / "config.json"
    write_list(models, a=DEMO_MODEL)
    with running(models, "--max-loaded-models", "1", *flags) as server:
        held = []
        for _ in range(4):  # the first load creates caches and thread pools
            assert server.complete("a") == 200
            assert server.ask("POST", "/v1/models/a/unload")[0] == 200
            held.append(server.held())
    (threads, descriptors, _), *_, (threads_later, descriptors_later, children) = held
    assert threads_later < threads + 3, "less than one a load"
    assert descriptors_later < descriptors + 3
    assert children == 0


def test_the_list_changes(server: Server, tmp_path: Path) -> None:
    def reload() -> tuple[int, Any]:
        return server.ask("POST", "/v1/config/reload")

    write_list(server.models, a=DEMO_MODEL, b=DEMO_MODEL)
    assert reload()[0] == 200
    write_list(server.models, a=DEMO_MODEL, new=DEMO_MODEL, broken=tmp_path)
    status, answer = reload()
    assert (status, "broken: " in answer["error"]) == (412, True)
    assert list(server.states()) == ["a", "new"]
    assert (server.complete("new"), server.complete("b")) == (200, 404)
    server.models.write_text("{")
    assert reload()[0] == 412
    assert list(server.states()) == ["a", "new"]
    copy = tmp_path / "copy"
    shutil.copytree(DEMO_MODEL, copy)
    write_list(server.models, new=copy)
    status, answer = reload()
    assert (status, list(answer)) == (201, ["new"])
    (copy / "openvino_model.xml").write_text("<")
    server.ask("POST", "/v1/models/new/unload")
    status, answer = server.ask(
        "POST", "/v1/completions", {"model": "new", "prompt": "a", "max_tokens": 1}
    )
    assert status == 503
    assert "the model new could not be loaded: " in answer["error"]["message"]
    assert server.ask("GET", "/v1/models/new")[1]["status"]["failed"] is True


def test_a_list_that_is_empty_at_first_and_at_last(tmp_path: Path) -> None:
    models = tmp_path / "config.json"
    write_list(models)
    complete = {"prompt": "Once", "max_tokens": 2}
    with running(models, "--file-system-poll-wait-seconds", "0") as server:
        for _ in range(2):
            assert server.ask("GET", "/ready")[0] == server.ask("GET", "/health")[0] == 200
            listed = {"object": "list", "data": [], "models": []}
            assert server.ask("GET", "/v1/models") == (200, listed)
            assert server.ask("GET", "/api/tags") == (200, {"models": []})
            assert server.ask("GET", "/openapi.json")[0] == 200
            assert (server.states(), server.complete("a")) == ({}, 404)
            code, answer = server.ask("POST", "/v1/completions", complete)
            assert (code, answer["error"]["message"]) == (404, "no model is served at the moment")
            write_list(models, a=DEMO_MODEL)
            assert server.ask("POST", "/v1/config/reload")[0] == 201
            assert server.complete("a") == 200
            assert server.ask("POST", "/v1/completions", complete)[0] == 200
            assert main(["--remove-from-config", str(models), "--model-name", "a"]) == 0
            assert server.ask("POST", "/v1/config/reload") == (201, {})


@pytest.mark.nightly
def test_models_that_encode_texts_come_and_go_as_others(tmp_path: Path) -> None:
    models = tmp_path / "config.json"
    write_list(models, chat=DEMO_MODEL, emb=encoder_dir(), rank=encoder_dir(1))
    embed = {"model": "emb", "input": ["the model of the river"] * 8}
    rank = {"model": "rank", "query": "the city", "documents": ["light", "of the river"]}
    count = {"model": "emb", "text": "the model"}

    with running(models, "--max-loaded-models", "1", "--idle-unload", "1h") as server:
        calls = [
            lambda: server.ask("POST", "/v1/embeddings", embed)[0],
            lambda: server.ask("POST", "/v3/rerank", rank)[0],
            lambda: server.ask("POST", "/v3/tokenize", count)[0],
            lambda: server.complete("chat"),
            lambda: server.ask("POST", "/v1/models/emb/unload")[0],
            lambda: server.ask("POST", "/v1/models/rank/load")[0],
        ]
        with ThreadPoolExecutor(4) as clients:
            statuses = list(clients.map(lambda number: calls[number % 6](), range(12)))
        assert statuses == [200] * 12
        assert server.ask("POST", "/v1/embeddings", embed)[0] == 200
        assert 'fastovms_encoder_texts_total{model_name="emb"} 24.0' in server.metrics()
        assert len(server.loaded()) == 1
