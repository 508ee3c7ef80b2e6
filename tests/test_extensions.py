"""Endpoints and commands of other packages: the examples of docs/extensions.md, and faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from fastovms.app.routes import add_model_routes
from fastovms.errors import ConfigurationError
from fastovms.extensions import COMMANDS, ENDPOINTS, load_extensions
from fastovms.http.routing import Router
from tests.paths import ROOT
from tests.real_server import start_server, stop_server

EXAMPLES = re.findall(r"```py\n(.+?)```", (ROOT / "docs/extensions.md").read_text(), re.DOTALL)


def install(directory: Path, source: str, **groups: str) -> None:
    """Writes a package and its metadata, as an installer would."""
    (directory / "my_package.py").write_text(source)
    metadata = directory / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    points = (f"[fastovms.{group}]\n{point}\n" for group, point in groups.items())
    (metadata / "entry_points.txt").write_text("\n".join(points))


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def run(*line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastovms", *line], capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
def test_documented_endpoint_is_served_and_described(tmp_path, monkeypatch):
    install(tmp_path, EXAMPLES[0], endpoints="example = my_package:endpoints")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    server = start_server()
    try:
        assert get(server.url + "/v1/example") == {"models": ["demo_model"]}
        described = get(server.url + "/openapi.json")["paths"]["/v1/example"]["get"]
        assert (described["summary"], described["tags"]) == ("Lists the models.", ["Extensions"])
    finally:
        stop_server(server)


@pytest.mark.slow
def test_documented_command_runs(tmp_path, monkeypatch):
    install(tmp_path, EXAMPLES[1], commands="hello = my_package:command\nserve = my_package:no")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    done = run("hello", "Ada")
    assert (done.returncode, done.stdout) == (0, "Hello, Ada!\n")
    done = run("hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fastovms hello: the following arguments are required: name")
    assert run("serve", "--help").stdout.startswith("usage: fastovms serve [FLAG ...] [MODEL]")


@pytest.mark.nightly(but=("import nowhere",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("endpoints = 5", "it is not a function, but 5"),
        ("def endpoints(context): raise KeyError('x')", "KeyError: 'x'"),
        (EXAMPLES[0].replace("/v1/example", "/v1/models"), "GET /v1/models exists already"),
    ],
)
def test_faulty_extension_ends_the_start_with_its_place(tmp_path, monkeypatch, source, message):
    install(tmp_path, source, endpoints="example = my_package:endpoints")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    done = run("serve", "--port", "0", "--state-dir", ":memory:")
    place = "fastovms: fastovms.endpoints: example (my_package:endpoints): "
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, place + message)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def endpoints(context): return 5", "TypeError: 'int' object is not iterable"),
        ("def endpoints(context): yield 5", "a route must be a Route, not 5"),
    ],
)
def test_extension_without_routes_is_named(tmp_path, monkeypatch, source, message):
    install(tmp_path, source, endpoints="example = my_package:endpoints")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_package", raising=False)
    with pytest.raises(ConfigurationError) as caught:
        add_model_routes(Router(), MagicMock(), extensions=load_extensions(ENDPOINTS))
    place = "fastovms.endpoints: example (my_package:endpoints): "
    assert str(caught.value) == place + message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def command(parser): raise KeyError('x')", "KeyError: 'x'"),
        ("def command(parser): pass", "it must return a function, not None"),
        (
            "def command(parser): return str",
            "it must return an exit code or None, not 'Namespace()'",
        ),
    ],
)
def test_extension_without_a_command_is_named(tmp_path, monkeypatch, source, message):
    install(tmp_path, source, commands="hello = my_package:command")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    done = run("hello")
    told = f"fastovms: fastovms.commands: hello (my_package:command): {message}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


_RAISING = """
from fastovms import errors

def command(parser):
    parser.add_argument("error")
    def run(arguments):
        raise getattr(errors, arguments.error, KeyError)("went wrong")
    return run
"""


@pytest.mark.parametrize(
    ("error", "code", "last_line"),
    [
        ("ConfigurationError", 2, "fastovms: went wrong"),
        ("EngineFailed", 1, "fastovms: went wrong"),
        ("KeyError", 1, "KeyError: 'went wrong'"),
    ],
)
def test_exception_of_an_extension_command_is_shown(tmp_path, monkeypatch, error, code, last_line):
    install(tmp_path, _RAISING, commands="hello = my_package:command")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    done = run("hello", error)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, lines[-1]) == (code, "", last_line)
    assert (lines[0] == "Traceback (most recent call last):") == (error == "KeyError")


def test_no_extensions_are_loaded_if_none_are_installed():
    assert load_extensions(ENDPOINTS) == []
    assert load_extensions(COMMANDS, "hello") == []


def test_extension_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    install(tmp_path, "", commands="hello = my_package:nothing")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigurationError, match=r"fastovms.commands: hello \(my_package:nothing\)"
    ):
        load_extensions(COMMANDS, "hello")
