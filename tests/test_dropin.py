"""The real server, started as OpenVINO Model Server and vLLM are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from fastovms.cli.main import main
from fastovms.server_config import DEMO_MODEL
from tests.ovms.test_graph import write as write_graph
from tests.real_server import PROMPT, Server, started


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
def ovms(graph: Path) -> Iterator[Server]:
    line = ["--port", "0", "--rest_port", "0", "--model_path", str(graph), "--model_name", "org/m"]
    with started(*line, "--rest_workers", "2", "--metrics_enable", "--log_level", "INFO") as server:
        yield server


def test_graph_is_served_under_the_flags_of_ovms(ovms):
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
    config = ovms.send("GET", "/v1/config")
    [version] = config.json["org/m"]["model_version_status"]
    assert (config.status, version["state"]) == (200, "AVAILABLE")
    for path, status in (
        ("/v2/models/org%2Fm/ready", 200), ("/v2/models/org/m/ready", 200),
        ("/v2/models/other/ready", 404), ("/v2/health/ready", 200),
    ):  # fmt: skip
        assert ovms.send("GET", path).status == status, path
    assert ovms.send("GET", "/v2/models/org/m").json["platform"] == "OpenVINO"
    assert b"ovms_requests_accepted" in ovms.send("GET", "/metrics").body


def test_unused_options_are_logged_once(ovms):
    told = [line.partition("WARNING ")[2].strip() for line in ovms.errors if "not used" in line]
    assert len(told) == len(set(told)) == 3, told
    assert told[0].startswith("fastovms.cli.serve: settings: --rest-workers is not used: ")
    assert "graph.pbtxt: dynamic_split_fuse is not used: " in told[1]
    assert "plugin_config MAX_PROMPT_LEN is not used: " in told[2]


@pytest.mark.nightly
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
        assert server.send("GET", "/v1/models").status == 200
        assert server.send("GET", "/v1/config").json.keys() == {"one", "two"}


@pytest.mark.nightly
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
        assert server.send("GET", "/v1/models").status == 401
        with server.client("/v1", "secret") as client:
            [card] = client.models.list()
            assert (card.id, card.max_model_len) == ("first", 256)
            assert client.models.retrieve("second").id == "first"
            for name in ("first", "second"):
                answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=1)
                assert answer.model == "first"
    assert any("RAW_OPENAI_OUTPUT in the environment is not used" in line for line in server.errors)


def test_invalid_graph_is_refused_with_one_line(capfd, tmp_path):
    path = write_graph(tmp_path, f'models_path: "{DEMO_MODEL}"\nmax_num_seq: 4')
    assert main([f"--model_path={tmp_path}", "--rest_port", "0"]) == 2
    line = f"fastovms: {path}, line 20: max_num_seq is not an option\n"
    assert capfd.readouterr().err == line


def test_list_models_prints_the_names_of_a_repository(capfd, tmp_path):
    for name in ("org/b", "a"):
        (tmp_path / name).mkdir(parents=True)
        write_graph(tmp_path / name, "")
    assert main(["--list_models", "--model_repository_path", str(tmp_path)]) == 0
    assert capfd.readouterr().out == "a\norg/b\n"
