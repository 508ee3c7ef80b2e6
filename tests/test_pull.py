"""The command line against a hub on loopback, with the demo model in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastovms.server_config import DEMO_MODEL
from tests.fake_hub import FakeHub, files_of, model_files_of, running

ID = "org/demo"


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with running(FakeHub({ID: files_of(DEMO_MODEL)})) as hub:
        yield hub


def start(hub_url: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fastovms", *arguments],
        env={**os.environ, "HF_ENDPOINT": hub_url, "XDG_CACHE_HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(hub_url: str, folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(hub_url, folder, *arguments)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def test_pulled_model_is_complete_and_found_again_offline(hub, tmp_path):
    path = tmp_path / "fastovms" / "models" / ID
    code, output, errors = run(hub.url, tmp_path, "pull", ID)
    assert (code, output) == (0, f"{path}\n"), errors
    assert f"downloading {ID} to {path}" in errors
    assert model_files_of(path) == files_of(DEMO_MODEL)
    assert run("http://127.0.0.1:9", tmp_path, "pull", ID) == (0, f"{path}\n", "")


@pytest.mark.nightly(but=("arguments0",))
@pytest.mark.parametrize("arguments", [("pull",), ("serve", "--port", "0")])
def test_pull_without_network_is_refused_with_one_line(tmp_path, arguments):

    code, output, errors = run("http://127.0.0.1:9", tmp_path, *arguments, ID)
    assert (code, output) == (2, "")
    last = errors.splitlines()[-1]
    assert last.startswith("fastovms: ")
    assert f"cannot download {ID}: http://127.0.0.1:9 cannot be reached" in last
    assert "Traceback" not in errors


def test_serve_pulls_and_later_needs_no_network(hub, tmp_path):
    repository = ("--model-repository-path", str(tmp_path / "models"))
    for url in (hub.url, "http://127.0.0.1:9"):
        process = start(url, tmp_path, "serve", ID, *repository, "--port", "0")
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            assert process.stdout.readline().startswith(f"model {ID}: ")
            with urllib.request.urlopen(f"{address}/v1/models", timeout=60) as answer:
                assert json.load(answer)["data"][0]["id"] == ID
        finally:
            process.kill()
            process.communicate()
    assert model_files_of(tmp_path / "models" / ID) == files_of(DEMO_MODEL)
