"""The running server keeps to its own description, whatever is sent: schemathesis asks every
operation, with examples, with what the schemas allow, and one operation after the other."""

from __future__ import annotations

import re
import subprocess
import sys

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


@pytest.mark.parametrize(
    "phases", ["examples", pytest.param("examples,fuzzing,stateful", marks=pytest.mark.nightly)]
)
def test_each_operation_passes_the_checks_of_schemathesis(
    short_server: Server, tmp_path, phases: str
):
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{short_server.url}/openapi.json"),
        *("--phases", phases, "--max-examples", "3", "--seed", "1"),
        *("--checks", ",".join(CHECKS), "--suppress-health-check", "all", "--no-color"),
        *("--warnings", "off", "--request-timeout", "20"),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    document = short_server.send("GET", "/openapi.json").json
    num_operations = sum(map(len, document["paths"].values()))
    (num_tested,) = map(int, re.findall(r"Tested: (\d+)\n", done.stdout))
    # It leaves out the operation that it has the description from, and those without examples.
    least = num_operations // 3 if phases == "examples" else num_operations - 1
    assert least <= num_tested < num_operations


def test_examples_of_the_document_name_the_model(short_server):
    document = short_server.send("GET", "/openapi.json").json
    body = document["paths"]["/v1/completions"]["post"]["requestBody"]
    [first, *_] = body["content"]["application/json"]["examples"].values()
    assert first["value"]["model"] == "demo_model"
    assert {"/openapi.json", "/docs", "/metrics", "/health"} <= set(document["paths"])


@pytest.mark.nightly
@pytest.mark.parametrize("flag", [None, "--disable-fastapi-docs"])
def test_document_of_a_server_with_a_key_names_no_model(flag):
    """Strangers may read what the API is like, but not what the models are called."""
    server = start_server("--api-key", "alpha", *([flag, "--no-ui"] if flag else []))
    try:
        for path in ("/openapi.json", "/docs", "/"):
            assert server.send("GET", path).status == (401 if flag else 200)
            key = {"Authorization": "Bearer alpha"}
            assert server.send("GET", path, **key).status == (404 if flag else 200)
        assert server.send("GET", "/v1/models").status == 401
        assert b"demo_model" not in server.send("GET", "/openapi.json").body
    finally:
        stop_server(server)
