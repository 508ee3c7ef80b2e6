"""The running server keeps to its own description, whatever is sent: schemathesis asks every
operation, with examples, with what the schemas allow, and one operation after the other."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.real_server import Server, start_server, stop_server

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@pytest.fixture(scope="module")
def short_server():
    """Answers are short, so that no request takes long."""
    server = start_server("--max-model-len", "128", "--state-dir", ":memory:")
    yield server
    stop_server(server)


def test_each_operation_passes_the_checks_of_schemathesis(short_server: Server, tmp_path):
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{short_server.url}/openapi.json"),
        *("--phases", "examples,fuzzing,stateful", "--max-examples", "3", "--seed", "1"),
        *("--checks", ",".join(CHECKS), "--suppress-health-check", "all", "--no-color"),
        *("--warnings", "off", "--request-timeout", "20"),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    document = read(f"{short_server.url}/openapi.json")
    num_operations = sum(map(len, document["paths"].values()))
    # It leaves out the one that it has the description from.
    assert f"Tested: {num_operations - 1}\n" in done.stdout


def read(url: str, key: str = "") -> dict:
    fields = {"Authorization": f"Bearer {key}"} if key else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=fields)) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return json.load(answer)


def test_the_model_is_named_in_examples(short_server):
    document = read(f"{short_server.url}/openapi.json")
    body = document["paths"]["/v1/completions"]["post"]["requestBody"]
    [first, *_] = body["content"]["application/json"]["examples"].values()
    assert first["value"]["model"] == "demo_model"
    assert {"/openapi.json", "/docs", "/metrics", "/health"} <= set(document["paths"])


@pytest.mark.parametrize("flag", [None, "--disable-fastapi-docs"])
def test_with_a_key(flag):
    """Strangers may read what the API is like, but not what the models are called."""
    server = start_server("--api-key", "alpha", *([flag, "--no-ui"] if flag else []))
    try:
        for path in ("/openapi.json", "/docs", "/"):
            for key, status in (("", 401 if flag else 200), ("alpha", 404 if flag else 200)):
                assert ask(server.url + path, key)[0] == status
        assert ask(f"{server.url}/v1/models", "")[0] == 401
        if not flag:
            assert b"demo_model" not in ask(f"{server.url}/openapi.json", "")[1]
    finally:
        stop_server(server)


def ask(url: str, key: str) -> tuple[int, bytes]:
    fields = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=fields)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
