"""The real server, started as OpenVINO Model Server and vLLM are."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from fastovms.cli.main import main
from fastovms.server_config import DEMO_MODEL
from tests.ovms.test_graph import write as write_graph

PROMPT = "Once upon a time"


@dataclass
class Started:
    url: str
    errors: list[str] = field(default_factory=list)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def client(self, prefix: str, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + prefix, api_key=key, max_retries=0, timeout=60)


@contextlib.contextmanager
def started(*arguments: str, **environ: str) -> Iterator[Started]:
    process = subprocess.Popen(
        [sys.executable, "-m", "fastovms", *arguments],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    errors: list[str] = []
    assert process.stderr is not None
    assert process.stdout is not None
    reader = threading.Thread(target=errors.extend, args=(process.stderr,))
    reader.start()
    try:
        address = process.stdout.readline().rpartition(" ")[2].strip()
        assert address.startswith("http"), errors
        yield Started(address.replace("0.0.0.0", "127.0.0.1"), errors)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    write_graph(
        folder,
        f"""
        models_path: "{DEMO_MODEL}" max_num_seqs: 4 max_tokens_limit: 20 best_of_limit: 3
        plugin_config: '{{"prompt_lookup": true, "MAX_PROMPT_LEN": 64}}'
        enable_prefix_caching: true cache_size: 1 dynamic_split_fuse: false
        """,
    )
    return folder


@pytest.fixture(scope="module")
def ovms(graph: Path) -> Iterator[Started]:
    line = ["--port", "0", "--rest_port", "0", "--model_path", str(graph), "--model_name", "org/m"]
    with started(*line, "--rest_workers", "2", "--metrics_enable", "--log_level", "INFO") as server:
        yield server


def test_a_graph_under_ovmss_flags(ovms):
    with ovms.client("/v3") as client:
        assert [model.id for model in client.models.list()] == ["org/m"]
        request = {"model": "org/m", "prompt": PROMPT, "temperature": 0}
        text = client.completions.create(**request, max_tokens=19).choices[0].text
        chunks = client.completions.create(**request, max_tokens=19, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == text
        longest = client.completions.create(**request, extra_body={"ignore_eos": True})
        assert longest.usage.completion_tokens == 20, "max_tokens_limit"
        for fields, named in (({"max_tokens": 20}, "max_tokens"), ({"best_of": 3}, "best_of")):
            with pytest.raises(openai.BadRequestError) as caught:
                client.completions.create(**request, **fields)
            assert named in str(caught.value.body)


def test_ovms_status_endpoints_answer(ovms):
    status, body = ovms.get("/v1/config")
    [version] = json.loads(body)["org/m"]["model_version_status"]
    assert (status, version["state"]) == (200, "AVAILABLE")
    assert ovms.get("/v2/models/org%2Fm/ready") == ovms.get("/v2/models/org/m/ready") == (200, b"")
    assert json.loads(ovms.get("/v2/models/org/m")[1])["platform"] == "OpenVINO"
    assert ovms.get("/v2/models/other/ready")[0] == 404
    assert ovms.get("/v2/health/ready")[0] == 200
    assert b"ovms_requests_accepted" in ovms.get("/metrics")[1]


def test_unused_options_are_logged_once(ovms):
    told = [line.partition("WARNING ")[2].strip() for line in ovms.errors if "not used" in line]
    assert len(told) == len(set(told)) == 3, told
    assert told[0].startswith("fastovms.cli.serve: --rest-workers is not used: ")
    assert "graph.pbtxt: dynamic_split_fuse is not used: " in told[1]
    assert "plugin_config MAX_PROMPT_LEN is not used: " in told[2]


def test_a_list_of_models_behind_a_proxy(graph, tmp_path):
    for name in ("one", "two"):
        line = ["--add_to_config", str(tmp_path), "--model_name", name, "--model_path", str(graph)]
        assert main(line) == 0
    root = ["--root-path", "/v2/abc/openai"]
    with started("--config_path", str(tmp_path), "--rest_port", "0", *root) as server:
        with server.client("/v2/abc/openai/v1") as client:
            assert [model.id for model in client.models.list()] == ["one", "two"]
            answer = client.completions.create(model="two", prompt=PROMPT, max_tokens=1)
            assert answer.model == "two"
        assert server.get("/v1/models")[0] == 200
        assert json.loads(server.get("/v1/config")[1]).keys() == {"one", "two"}


def test_serve_takes_its_settings_from_runpod_variables(tmp_path):
    environ = {
        "MODEL_NAME": str(DEMO_MODEL),
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "first,second",
        "MAX_MODEL_LEN": "256",
        "MAX_NUM_SEQS": "4",
        "RAW_OPENAI_OUTPUT": "0",
        "VLLM_EXTRA_ARGS": "--api-key secret",
    }
    with started("serve", "--port", "0", **environ) as server:
        assert server.get("/v1/models")[0] == 401
        with server.client("/v1", "secret") as client:
            [card] = client.models.list()
            assert (card.id, card.max_model_len) == ("first", 256)
            assert client.models.retrieve("second").id == "first"
            for name in ("first", "second"):
                answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=1)
                assert answer.model == "first"
    assert any("RAW_OPENAI_OUTPUT in the environment is not used" in line for line in server.errors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rest_port", "x"], "argument --port: must be an integer from 0 to 65535, not 'x'"),
        (["--rest_workers", "x"], "argument --rest-workers: must be an integer at least 1"),
        (["--task", "text2speech"], "argument --task: must be auto, text_generation, "),
        (["--model_path", "/none", "--model_name", "a"], "model directory /none does not exist"),
        (["--model_repository_path", "/none", "--model_name", "a"], "/none/a does not exist"),
        (["--config_path", "/none.json"], "cannot read /none.json"),
        (["--pull", "--task", "text_generation"], "--pull needs --source-model"),
        (["--add_to_config", "/none"], "--add-to-config needs --model-name"),
        (["--add_to_config", "/none", "--model_name", "a"], "needs --model-path or"),
        (["--remove_from_config", "/none", "--model_name", "a"], "cannot read /none"),
        (["--list_models", "--model_repository_path", "/none"], "there is no directory /none"),
        (["--kv_cache_precision", "i4"], "argument --kv-cache-precision: must be u4"),
        (["--grpc_port"], "--grpc-port"),
    ],
)  # fmt: skip
def test_invalid_ovms_line_is_refused_with_one_line(capfd, arguments, message):
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = exit.code
    output = capfd.readouterr()
    assert (code, output.out, output.err.count("\n")) == (2, "", 1), output.err
    assert message in output.err


def test_a_wrong_variable_is_one_line(capfd, monkeypatch):
    monkeypatch.setenv("MAX_NUM_SEQS", "many")
    assert main(["serve"]) == 2
    line = "fastovms: MAX_NUM_SEQS in the environment must be an integer at least 1, not 'many'\n"
    assert capfd.readouterr().err == line


def test_a_wrong_graph_is_one_line(capfd, tmp_path):
    path = write_graph(tmp_path, f'models_path: "{DEMO_MODEL}"\nmax_num_seq: 4')
    assert main([f"--model_path={tmp_path}", "--rest_port", "0"]) == 2
    line = f"fastovms: {path}, line 20: max_num_seq is not an option\n"
    assert capfd.readouterr().err == line


def test_models_are_listed(capfd, tmp_path):
    for name in ("org/b", "a"):
        (tmp_path / name).mkdir(parents=True)
        write_graph(tmp_path / name, "")
    assert main(["--list_models", "--model_repository_path", str(tmp_path)]) == 0
    assert capfd.readouterr().out == "a\norg/b\n"
