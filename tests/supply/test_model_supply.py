"""A real server of more models than it has room for, whose list changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from fastovms.config import DEMO_MODEL

FLAGS = ("--port", "0", "--cache-size", "0.05", "--no-tune", "--state-dir", ":memory:")


def write_list(path: Path, **models: Path) -> None:
    listed = [{"config": {"name": name, "base_path": str(base)}} for name, base in models.items()]
    path.write_text(json.dumps({"model_config_list": listed}))


class Server:
    """A process, and its list of models."""

    def __init__(self, url: str, models: Path) -> None:
        self.url = url
        self.models = models

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

    def states(self) -> dict[str, str]:
        statuses = self.ask("GET", "/v1/config")[1]
        return {name: one["model_version_status"][0]["state"] for name, one in statuses.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("models") / "config.json"
    write_list(path, a=DEMO_MODEL, b=DEMO_MODEL)
    flags = ["--config-path", str(path), *FLAGS, "--max-loaded-models", "1"]
    flags += ["--file-system-poll-wait-seconds", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fastovms", "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Server(process.stdout.readline().split()[-1], path)
    finally:
        process.kill()
        process.communicate()


def test_models_come_and_go(server: Server) -> None:
    assert server.states() == {"a": "END", "b": "END"}
    assert server.ask("GET", "/v2/models/a/ready")[0] == 503
    with ThreadPoolExecutor(6) as clients:
        assert {*clients.map(server.complete, "ababab")} == {200}
    assert sorted(server.states().values()) == ["AVAILABLE", "END"]
    status, card = server.ask("POST", "/v1/models/a/load")
    assert (status, card["status"]) == (200, {"value": "loaded"})
    assert server.ask("GET", "/v2/models/a/ready") == (200, None)
    status, card = server.ask("POST", "/v1/models/a/unload")
    assert (status, card["status"]) == (200, {"value": "unloaded"})
    assert server.ask("POST", "/v1/models/c/load")[0] == 404


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
