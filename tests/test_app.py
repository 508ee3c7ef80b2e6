"""What the server prints at its start, and where its access log goes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.app import _access_log, _greeting
from fastovms.config import ServiceConfig
from fastovms.metrics import GenerationMetrics
from fastovms.service.log_writer import LineWriter
from tests.fakes import ByteTokenizer, FakeBackend, model_info


def served(*names: str) -> ServedModels:
    models = []
    for name in names:
        backend = FakeBackend(lambda request, index: (), model_info(name=name))
        models.append(ServedModel(backend, ByteTokenizer(), GenerationMetrics(name, backend.stats)))
    return ServedModels(models)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:80", ["http://127.0.0.1:80/v1/completions"]),
        ("http://0.0.0.0:80", ["http://127.0.0.1:80/v1/completions"]),
        ("https://[::]:80", ["https://[::1]:80/v1/completions"]),
        ("unix:/run/s", ["--unix-socket", "/run/s", "http://localhost/v1/completions"]),
    ],
)
@pytest.mark.parametrize("needs_key", [False, True])
def test_the_greeting_has_a_line_for_a_shell(
    address: str, words: list[str], needs_key: bool
) -> None:
    name = "it's"
    *lines, last = _greeting([address, "b"], served(name, "x"), needs_key=needs_key).split("\n")
    assert lines[0].endswith(f"is listening on {address}, b")
    assert lines[1:] == [f"model {name}: context of 64 tokens", "model x: context of 64 tokens"]
    tried, curl, *arguments = shlex.split(last)
    assert (tried, curl) == ("try:", "curl")
    assert arguments[: len(words)] == words
    assert json.loads(arguments[-1])["model"] == name
    assert ("Authorization: Bearer $API_KEY" in arguments) is needs_key


@pytest.mark.parametrize(
    ("access_log", "has_file", "place"),
    [("off", False, None), ("off", True, None), ("text", False, "log"), ("json", True, "file")],
)
def test_where_the_access_log_goes(
    access_log: str, has_file: bool, place: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "access" if has_file else None
    log = LineWriter(tmp_path / "log")
    config = ServiceConfig(access_log=access_log, access_log_file=file)
    with _access_log(config, log) as lines:
        assert (lines is None) is (place is None)
        assert (lines is log) is (place == "log")
    assert (tmp_path / "access").exists() is (place == "file")
    log.close()
