"""Tests of `fastovms/cli/main.py`, `serve.py` and `run_batch.py`."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastovms import __version__
from fastovms.app import batch_app, compiling
from fastovms.app import serve as app
from fastovms.app.batch_app import BatchPaths, OfflineParts
from fastovms.app.catalog import ModelFinder
from fastovms.app.serve import ServerConfig
from fastovms.cli import run_batch
from fastovms.cli.command import USAGE_ERROR
from fastovms.cli.environment import EXTRA_ARGUMENTS, read_environment
from fastovms.cli.flags import FLAGS, read_flags
from fastovms.cli.main import main, parse
from fastovms.cli.serve import chosen_models, server_config
from fastovms.config import ChatConfig, EngineConfig, ModelLimits
from fastovms.errors import ConfigurationError
from fastovms.server_config import (
    DEMO_MODEL,
    ENGINE,
    ModelConfig,
    ModelSource,
    RepositoryConfig,
    ServiceConfig,
)
from tests.ovms.test_graph import write as write_graph

# The models and settings of a command line and its environment.


def chosen(*line: str, environ: Mapping[str, str] | None = None) -> list[ModelSource]:
    arguments = parse(["serve", *line])
    settings = read_environment(environ or {}).settings | read_flags(arguments)
    return chosen_models(arguments, settings)[0]


def found(source: ModelSource) -> ModelConfig:
    return ModelFinder(Path("/nowhere"), RepositoryConfig()).find(source)


@pytest.mark.parametrize(
    ("line", "environ", "expected"),
    [
        ("", {}, [ModelSource(str(DEMO_MODEL))]),
        ("m", {}, [ModelSource("m")]),
        ("m --model-name a", {}, [ModelSource("m", ("a",))]),
        ("m --served-model-name a b --port 1", {}, [ModelSource("m", ("a", "b"))]),
        ("--model m", {}, [ModelSource("m")]),
        ("--model a=m --model b=n", {}, [ModelSource("m", ("a",)), ModelSource("n", ("b",))]),
        ("--model_path m --model_name a", {}, [ModelSource("m", ("a",))]),
        ("--source_model org/m --model_name a", {}, [ModelSource("org/m", ("a",))]),
        ("--source_model org/m", {}, [ModelSource("org/m")]),
        ("--source_model org/m --gguf_filename q4.gguf", {}, [ModelSource("org/m/q4.gguf")]),
        ("", {"MODEL_NAME": "org/m"}, [ModelSource("org/m")]),
        ("m", {"MODEL_NAME": "org/m"}, [ModelSource("m")]),
        ("", {"OPENAI_SERVED_MODEL_NAME_OVERRIDE": "a,b"},
         [ModelSource(str(DEMO_MODEL), ("a", "b"))]),
        ("m --model-name x", {"SERVED_MODEL_NAME": "a"}, [ModelSource("m", ("x",))]),
        ("--model x=m", {"SERVED_MODEL_NAME": "a"}, [ModelSource("m", ("x",))]),
        ("--model m --model n", {"OPENAI_SERVED_MODEL_NAME_OVERRIDE": "a"},
         [ModelSource("m"), ModelSource("n")]),
    ],
)  # fmt: skip
def test_line_and_environment_choose_the_models(line, environ, expected):
    assert chosen(*line.split(), environ=environ) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("m --model n", "MODEL cannot be used with --model"),
        ("m --model_path n", "MODEL cannot be used with --model-path"),
        ("--model_path m --source_model a/b", "--model-path cannot be used with --source-model"),
        ("--source_model b --config_path c", "--source-model cannot be used with --config-path"),
        ("--source_model b", "--source-model must be ORG/NAME, not 'b'"),
        ("--config_path none.json", "cannot read none.json"),
        ("--model a --model b --model_name c", "for one model, not 2"),
    ],
)
def test_contradictory_model_arguments_are_refused(line, message):
    with pytest.raises(ConfigurationError) as caught:
        chosen(*line.split())
    assert message in str(caught.value)


def test_models_are_found_in_the_repository(tmp_path):
    (tmp_path / "org" / "m").mkdir(parents=True)
    repository = ("--model_repository_path", str(tmp_path))
    expected = str(tmp_path / "org" / "m")
    assert chosen("--model_path", "org/m", *repository) == [ModelSource(expected)]
    assert chosen("--model_name", "org/m", *repository) == [ModelSource(expected, ("org/m",))]
    [missing] = chosen("--model_name", "other", *repository)
    assert missing == ModelSource(str(tmp_path / "other"), ("other",))


GRAPH_OPTIONS = """
    models_path: "model" max_num_seqs: 9 cache_size: 3 max_tokens_limit: 99 best_of_limit: 4
    plugin_config: '{"prompt_lookup": false, "A": "graph", "B": "graph"}' device: "GPU"
    tool_parser: "hermes3"
"""


def test_options_of_a_graph_become_the_model_config(tmp_path):
    (tmp_path / "model").mkdir()
    graph = write_graph(tmp_path, GRAPH_OPTIONS)
    expected = ModelConfig(
        tmp_path / "model",
        (tmp_path.name,),
        EngineConfig(
            device="GPU",
            max_num_seqs=9,
            cache_size=3,
            plugin_config={"A": "graph", "B": "graph"},
            enable_prompt_lookup=False,
        ),
        ChatConfig(tool_parser="hermes3"),
        limits=ModelLimits(max_tokens_limit=99, best_of_limit=4),
    )
    for location in (tmp_path, graph):
        [source] = chosen(str(location))
        assert found(source) == expected


def test_flags_precede_a_graph(tmp_path):
    (tmp_path / "model").mkdir()
    write_graph(tmp_path, GRAPH_OPTIONS)
    line = ["--max_num_seqs", "2", "--plugin_config", '{"A": "flag"}', "--kv_cache_precision", "u8"]
    [source] = chosen(str(tmp_path), *line, "--enable-prompt-lookup", "--model-name", "x")
    config = found(source)
    assert config.names == ("x",)
    assert config.engine.max_num_seqs == 2
    assert config.engine.cache_size == 3
    assert config.engine.plugin_config == {
        "A": "flag", "B": "graph", "KV_CACHE_PRECISION": "u8",
    }  # fmt: skip
    assert config.engine.enable_prompt_lookup is True


def test_unused_options_of_a_graph_are_logged(tmp_path, caplog):
    write_graph(tmp_path, 'models_path: "./" dynamic_split_fuse: false')
    assert found(ModelSource(str(tmp_path))).path == tmp_path
    [record] = caplog.records
    assert record.getMessage().startswith(
        f"graph file {tmp_path}/graph.pbtxt: dynamic_split_fuse is not used: "
    )


def test_generation_config_flag_chooses_the_defaults(tmp_path):
    file = tmp_path / "generation_config.json"
    file.write_text("{}")

    def config(*whence: str) -> Any:
        [source] = chosen("m", *(("--generation-config", *whence) if whence else ()))
        model = found(source)
        return model.generation_config, model.has_defaults

    assert config() == config("auto") == (None, True)
    assert config("vllm") == (None, False)
    assert config(str(tmp_path)) == config(str(file)) == (file, True)
    with pytest.raises(ConfigurationError, match="--generation-config: no such file:"):
        config(str(tmp_path / "none.json"))


def test_flags_precede_a_list_of_models(tmp_path):
    (tmp_path / "a").mkdir()
    write_graph(tmp_path / "a", 'models_path: "." max_num_seqs: 9')
    properties = {"A": "list", "B": "list"}
    model = {"name": "b", "base_path": "a", "target_device": "GPU", "plugin_config": properties}
    root = {"model_config_list": [{"config": model}],
            "mediapipe_config_list": [{"name": "a"}],
            "monitoring": {"metrics": {"enable": True}}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(root))

    def read(*line: str) -> tuple[list[ModelConfig], bool]:
        arguments = parse(["--config_path", str(tmp_path), "--cache_size", "2", *line])
        models, settings = chosen_models(arguments, read_flags(arguments))
        return [found(model) for model in models], settings.section(ServiceConfig).ovms_metrics

    engine = EngineConfig(max_num_seqs=9, cache_size=2)
    listed = replace(engine, device="GPU", plugin_config=properties)
    models = [
        ModelConfig(tmp_path / "a", ("b",), listed),
        ModelConfig(tmp_path / "a", ("a",), engine),
    ]
    assert read() == (models, True)
    line = ["--plugin_config", '{"A": "flag"}', "--no-ovms-metrics", "--kv_cache_precision", "u8"]
    [changed, _], has_metrics = read(*line)
    assert not has_metrics
    assert changed.engine.device == "GPU"
    assert changed.engine.plugin_config == {"A": "flag", "B": "list", "KV_CACHE_PRECISION": "u8"}


def test_flags_reach_every_section_of_the_server_config() -> None:
    flags = {"--port": 1, "--max-batch-lines": 2, "--max-file-size": 3}
    words = {**flags, "--log-level": "error", "--state-dir": "x"}
    line = [f"{name}={value}" for name, value in words.items()]
    settings = read_flags(parse(line))
    config = server_config([ModelSource("m")], settings, Path("list"), list)
    assert config.models == (ModelSource("m"),)
    assert (config.http.port, config.batches.max_lines, config.files.max_file_size) == (1, 2, 3)
    assert (config.service.log_level, str(config.state.state_dir)) == ("error", "x")
    assert config.model_list == Path("list")
    assert config.read_models is not None


Call = tuple[BatchPaths, str, int, str]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []

    def supply(config: ServerConfig) -> str:
        return config.models[0].location

    def fake(paths: BatchPaths, parts: OfflineParts) -> int:
        calls.append((paths, str(parts.supply), parts.config.num_at_once, levels[-1]))
        return 1

    levels: list[str] = []
    monkeypatch.setattr(app, "model_supply", supply)
    monkeypatch.setattr(batch_app, "run_batch", fake)
    monkeypatch.setattr(run_batch, "start_log", lambda _, level: levels.append(level))
    return calls


def run(*line: str) -> int:
    arguments = parse(["run-batch", *line])
    return run_batch.run(arguments, read_flags(arguments))


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("in out m", "WARNING"),
        ("in out --model m --log-level debug", "DEBUG"),
        ("-i in -o out m", "WARNING"),
        ("--input-file in --output_file out --model m", "WARNING"),
    ],
)
def test_batch_arguments_give_paths_and_model(calls: list[Call], line: str, level: str) -> None:
    assert run("--batch-concurrency", "5", *line.split()) == 1
    assert calls == [(BatchPaths(Path("in"), Path("out")), "m", 5, level)]


def test_list_without_models_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_config_list": []}')
    with pytest.raises(ConfigurationError, match=r"config\.json lists no model"):
        run("in", "out", "--config-path", str(path))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ([], "needs IN and OUT"),
        (["in"], "needs IN and OUT"),
        (["-i", "in"], "given together"),
        (["-i", "in", "-o", "out", "a", "b"], "only MODEL"),
        (["in", "out", "a", "--model", "b"], "MODEL cannot be used with --model"),
    ],
)
def test_incomplete_or_contradictory_batch_arguments_are_refused(
    calls: list[Call], line: list[str], fault: str
) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        run(*line)
    assert not calls


# Command lines with the settings of environment variables.


def test_extra_arguments_precede_variables_and_follow_flags(monkeypatch):
    monkeypatch.setenv(EXTRA_ARGUMENTS, "--max_num_seqs 4 --cache-size 1")
    arguments = parse(["serve", "--max-num-seqs", "3"])
    settings = read_environment({"MAX_NUM_SEQS": "5"}).settings | read_flags(arguments)
    assert settings.given == {ENGINE.max_num_seqs: 3, ENGINE.cache_size: 1.0}
    assert parse(["pull", "a/b"]).model_ids == ["a/b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("serve --por 1", "there is no flag --por: did you mean --port?"),
        ("pull", "ORG/NAME"),
        ("tune", "MODEL"),
        ("state", "ACTION"),
        ("state migrate a", "TO"),
        ("tune m --port 1", "--port"),
        ("serve --config-path=", "must not be empty"),
    ],
)
def test_wrong_line_is_refused_with_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split())
    assert ended.value.code == USAGE_ERROR
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert "--help" in error


def refused(capfd, *arguments: str) -> str:
    """Returns the line on stderr with which the command refuses to start."""
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = exit.code
    output = capfd.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.endswith("\n")
    assert output.err.count("\n") == 1, output.err
    return output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dance",), "'dance' is neither a command, a file nor a directory"),
        (("serve", "--port", "x"), "argument --port: must be an integer from 0 to 65535, not 'x'"),
        (("serve", "--unknown"), "--unknown"),
        (("serve", "a", "b"), "b"),
        (("serve", "--host", "203.0.113.1", "--port", "0"), "cannot listen on 203.0.113.1:0"),
        (("serve", str(Path(__file__).parent), "--port", "0"), "has no openvino_model.xml"),
    ],
)
def test_invalid_command_line_is_refused_with_a_message(capfd, arguments, message):
    assert message in refused(capfd, *arguments)


def test_missing_model_directory_is_refused(capfd, tmp_path):
    missing = str(tmp_path / "nowhere")
    line = refused(capfd, "serve", missing, "--port", "0")
    assert line == f"fastovms: model directory {missing} does not exist\n"


def test_broken_model_is_refused_by_its_path(capfd, tmp_path):
    for name in ("model.xml", "model.bin", "tokenizer.xml", "detokenizer.xml"):
        (tmp_path / f"openvino_{name}").write_text('<net name="x" version="11"/>')
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 10, "n_ctx": 10, "eos_token_id": 1})
    )
    line = refused(capfd, "serve", str(tmp_path), "--port", "0")
    assert str(tmp_path) in line


def test_port_in_use_is_refused(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(capfd, "serve", "--port", str(port))
    assert line == f"fastovms: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--ssl-certfile", "{0}/none.pem"), "cannot use the TLS files {0}/none.pem: No such file"),
        (("--ssl-keyfile", "{0}/key.pem"), "a TLS key is given without a certificate"),
        (("--api-key-file", "{0}/none"), "cannot read the API keys in {0}/none"),
        (("--access-log-file", "{0}"), "cannot write the log {0}: Is a directory"),
        (("--uds", "{0}"), "cannot listen on unix:{0}: it exists and is not a socket"),
        (("--listen", "nowhere"), "address 'nowhere': expected host:port"),
        (("--listen", "::1:80"), "address '::1:80': write an IPv6 address in brackets"),
        (
            ("--precision=exact", '--plugin-config={{"INFERENCE_PRECISION_HINT": "bf16"}}'),
            "--precision exact cannot be used with plugin_config INFERENCE_PRECISION_HINT bf16, "
            "only with f32",
        ),
    ],
)
def test_options_that_cannot_be_combined_are_refused(capfd, tmp_path, flags, message):
    line = refused(capfd, "serve", "--port", "0", *(flag.format(tmp_path) for flag in flags))
    assert line.startswith("fastovms: " + message.format(tmp_path))


@pytest.mark.parametrize(
    ("line", "shows_all"),
    [
        ("serve --help", False),
        ("serve -h", False),
        ("serve --help-all", True),
        ("--help-all", True),
        ("serve --help=all", True),  # vLLM's
        ("--rest_port 9 --help", False),
        ("run-batch --help", False),
        ("run-batch --help-all", True),
    ],
)
def test_help_shows_ten_flags_and_help_all_shows_every_flag(capsys, line, shows_all):
    with pytest.raises(SystemExit) as exited:
        parse(line.split())
    shown = capsys.readouterr().out
    assert exited.value.code == 0
    common = {"--model", "--served-model-name"} | {flag.name for flag in FLAGS if flag.common}
    every = {
        "--model-name",
        "--modelfile",
        "--config-path",
        *common,
        *(flag.name for flag in FLAGS),
    }
    assert len(common) == 10
    found = set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE)) - {"--help-all"}
    assert found == (every if shows_all else common)
    assert "(default: 8000)" in " ".join(shown.split())
    assert ("--help-all: models, models of a hub, network" in shown) is not shows_all


OF_ALL = {"fastovms", "fastovms.__main__", "fastovms.cli", "fastovms.cli.command",
          "fastovms.cli.main", "fastovms.errors", "fastovms.quoting", "fastovms.system",
          "fastovms.system.deferred", "fastovms.system.memory"}  # fmt: skip
"""The modules of this package that every command needs."""

HEAVY = ("asyncio", "httptools", "huggingface_hub", "jinja2", "llguidance", "numba",
         "numpy", "openvino", "prometheus_client", "sqlite3", "ssl", "uvloop", "yaml")  # fmt: skip


@pytest.mark.parametrize(
    ("line", "own", "parts"),
    [
        ("--help", set(), set()),
        ("--version", set(), set()),
        ("bench --help", {"bench", "flag"}, {"load_test"}),
        ("state --help", {"state", "flag"}, set()),
        ("cache --help", {"cache", "flag"}, set()),
        ("chat --help", {"chat", "flag"}, {"client"}),
        ("serve --help", None, {"ovms"}),
        ("pull --help", None, {"ovms"}),
        ("doctor --help", None, {"ovms"}),
        ("serve --list-models --model-repository-path .", None, {"ovms"}),
    ],
)
def test_command_imports_only_its_own_modules(line, own, parts):
    code = (
        "import json, sys; from fastovms.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()], check=True, capture_output=True, text=True
    )
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert not imported & set(HEAVY)
    assert {name.split(".")[2] for name in imported if name.startswith("fastovms.parts.")} == parts
    if own is not None:
        commands = {f"fastovms.cli.{name}" for name in own}
        assert {name for name in imported if name.startswith("fastovms.cli")} <= OF_ALL | commands
    if own == set():
        assert {name for name in imported if name.startswith("fastovms")} <= OF_ALL


def test_openvino_is_imported_without_its_telemetry():
    code = (
        "import sys; from fastovms.system.deferred import leave_out_converter\n"
        "leave_out_converter(); import openvino, openvino_genai\n"
        "print(openvino.Core, 'openvino_telemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.endswith("False\n")


@pytest.mark.nightly(but=("arguments0-15",))
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", [("serve",), ("pull", "a/b")])
def test_signal_before_the_start_ends_the_command(number, arguments):
    code = (
        "import time; from fastovms.cli import main, pull, serve\n"
        "def wait(*_):\n  print('starting', flush=True)\n  time.sleep(60)\n"
        "serve._serve, pull.pull_models = wait, wait\n"
        "main.run()"
    )
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"starting\n"
        process.send_signal(number)
        assert process.wait(60) == (0 if arguments == ("serve",) else 128 + number)
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_version_flag_prints_the_version(capfd):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capfd.readouterr().out == f"fastovms {__version__}\n"


@pytest.mark.parametrize(
    ("line", "is_ahead"),
    [
        ([], True),
        ([str(DEMO_MODEL), "--served-model-name", "a", "b"], True),
        (["--model", f"a={DEMO_MODEL}", "--model", f"b={DEMO_MODEL}"], False),
        (["--max-loaded-models", "1"], False),
        (["someone/not-downloaded"], False),
        (["./nowhere"], True),  # and the server says that it is missing
    ],
)
def test_single_local_model_is_compiled_while_the_server_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: list[str], is_ahead: bool
) -> None:
    found: list[object] = []
    monkeypatch.setattr(compiling, "EarlyCompilation", found.append)
    monkeypatch.setattr(app, "serve", lambda config, log, ahead, sockets: None)
    main(["serve", *line, "--port", "0", "--model-repository-path", str(tmp_path)])
    assert len(found) == is_ahead
