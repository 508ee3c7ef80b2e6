"""Tests of `fastovms/cli/main.py`, `serve.py` and `run_batch.py`."""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
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
from fastovms.cli.serve import add_serving_arguments, chosen_models, server_config
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


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ([], "model", None),
        (["m"], "model", "m"),
        (["--model", "a=m", "--model", "n"], "models", ["a=m", "n"]),
        (["--model-name", "a"], "names", ["a"]),
        (["--served-model-name", "a", "b"], "names", ["a", "b"]),
        (["--config-path", "c.json"], "config_path", Path("c.json")),
        (["--model-path", "m"], "model_path", Path("m")),
        (["--source-model", "a/b"], "source_model", "a/b"),
        (["--gguf-filename", "x.gguf"], "gguf_filename", "x.gguf"),
    ],
)
def test_serving_arguments_are_stored_by_name(line: list[str], name: str, value: object) -> None:
    parser = argparse.ArgumentParser()
    add_serving_arguments(parser, shows_all=True)
    assert getattr(parser.parse_args(line), name) == value


# Which models a line and its environment mean, and with which settings.


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
def test_ways_to_name_a_model(line, environ, expected):
    assert chosen(*line.split(), environ=environ) == expected


def test_flags_go_before_the_environment():
    environ = {"MAX_NUM_SEQS": "5", "MAX_MODEL_LEN": "7"}
    [source] = chosen("m", "--max-num-seqs", "3", environ=environ)
    assert source.settings.given == {ENGINE.max_num_seqs: 3, ENGINE.max_model_len: 7}


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


def test_models_of_the_repository(tmp_path):
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


def test_flags_go_before_a_graph(tmp_path):
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("plugin_config: '{'", "graph.pbtxt: plugin_config must be a JSON object"),
        ("""plugin_config: '{"prompt_lookup": 5}'""", "prompt_lookup must be true or false, not 5"),
    ],
)
def test_a_wrong_plugin_config_in_a_graph(tmp_path, options, message):
    write_graph(tmp_path, f'models_path: "." {options}')
    with pytest.raises(ConfigurationError) as caught:
        found(ModelSource(str(tmp_path)))
    assert message in str(caught.value)


def test_unused_options_of_a_graph_are_logged(tmp_path, caplog):
    write_graph(tmp_path, 'models_path: "./" dynamic_split_fuse: false')
    assert found(ModelSource(str(tmp_path))).path == tmp_path
    [record] = caplog.records
    assert record.getMessage().startswith(
        f"graph file {tmp_path}/graph.pbtxt: dynamic_split_fuse is not used: "
    )


def test_where_defaults_come_from(tmp_path):
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


def test_a_list_of_models(tmp_path):
    (tmp_path / "a").mkdir()
    write_graph(tmp_path / "a", 'models_path: "." max_num_seqs: 9')
    root = {"model_config_list": [{"config": {"name": "b", "base_path": "a"}}],
            "mediapipe_config_list": [{"name": "a"}],
            "monitoring": {"metrics": {"enable": True}}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(root))
    arguments = parse(["--config_path", str(tmp_path / "config.json"), "--cache_size", "2"])
    models, settings = chosen_models(arguments, read_flags(arguments))
    assert settings.section(ServiceConfig).ovms_metrics is True
    for model, name in zip(models, "ba", strict=True):
        expected = EngineConfig(max_num_seqs=9, cache_size=2)
        assert found(model) == ModelConfig(tmp_path / "a", (name,), expected)


def test_flags_go_before_a_list_of_models(tmp_path):
    (tmp_path / "a").mkdir()
    properties = {"A": "list", "B": "list"}
    model = {"name": "a", "base_path": "a", "target_device": "GPU", "plugin_config": properties}
    root = {"model_config_list": [{"config": model}],
            "monitoring": {"metrics": {"enable": True}}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(root))
    line = ["--config_path", str(tmp_path), "--plugin_config", '{"A": "flag"}', "--no-ovms-metrics"]
    arguments = parse([*line, "--kv_cache_precision", "u8"])
    [model], settings = chosen_models(arguments, read_flags(arguments))
    assert settings.section(ServiceConfig).ovms_metrics is False
    engine = found(model).engine
    assert engine.device == "GPU"
    assert engine.plugin_config == {"A": "flag", "B": "list", "KV_CACHE_PRECISION": "u8"}


def test_every_section_is_the_operators() -> None:
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


PATHS = BatchPaths(Path("in"), Path("out"))


@pytest.mark.parametrize(
    ("line", "model"),
    [
        (["in", "out", "m"], "m"),
        (["in", "out", "--model", "m"], "m"),
        (["-i", "in", "-o", "out", "m"], "m"),
        (["--input-file", "in", "--output_file", "out", "--model", "m"], "m"),
    ],
)
def test_batch_arguments_give_paths_and_model(
    calls: list[Call], line: list[str], model: str
) -> None:
    assert run("--batch-concurrency", "5", *line) == 1
    assert calls == [(PATHS, model, 5, "WARNING")]


def test_a_list_without_models(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_config_list": []}')
    with pytest.raises(ConfigurationError, match=r"config\.json lists no model"):
        run("in", "out", "--config-path", str(path))


def test_the_log_as_it_is_asked_for(calls: list[Call]) -> None:
    run("in", "out", "--log-level", "debug")
    assert calls[0][3] == "DEBUG"


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


# Command lines are read, with what variables add to them.


def test_extra_arguments_go_before_variables_and_behind_flags(monkeypatch):
    monkeypatch.setenv(EXTRA_ARGUMENTS, "--max_num_seqs 4 --cache-size 1")
    arguments = parse(["serve", "--max-num-seqs", "3"])
    settings = read_environment({"MAX_NUM_SEQS": "5"}).settings | read_flags(arguments)
    assert settings.given == {ENGINE.max_num_seqs: 3, ENGINE.cache_size: 1.0}
    assert parse(["pull", "a/b"]).model_ids == ["a/b"]


@pytest.mark.parametrize(
    ("line", "command"),
    [("serve m", "serve"), ("--port 1", "serve"), ("pull a/b", "pull"), ("tune m", "tune")],
)
def test_first_word_selects_the_command_with_serve_as_default(line, command):
    assert parse(line.split()).command.__module__ == f"fastovms.cli.{command}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--por", "1"], "there is no flag --por: did you mean --port?"),
        (["pull"], "ORG/NAME"),
        (["tune"], "MODEL"),
        (["state"], "ACTION"),
        (["state", "migrate", "a"], "TO"),
        (["tune", "m", "--port", "1"], "--port"),
        (["serve", "--config-path", ""], "must not be empty"),
    ],
)
def test_a_wrong_line_is_one_line_of_error(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == USAGE_ERROR
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert "--help" in error


def test_mode_flags_of_ovms_are_parsed():
    arguments = parse(["--pull", "--source_model", "a/b", "--add_to_config", "list.json"])
    assert (arguments.pull, arguments.list_models, arguments.configure) == (True, False, False)
    assert arguments.source_model == "a/b"
    assert arguments.add_to_config == Path("list.json")
    assert parse(["--add_to_config"]).add_to_config is True


def refused(capfd, *arguments: str) -> str:
    """The one line on stderr with which the command refuses to start."""
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
        (("SERVE",), "did you mean serve?"),
        (("serve", "--port", "x"), "argument --port: must be an integer from 0 to 65535, not 'x'"),
        (("serve", "--port", "65536"), "--port"),
        (("serve", "--port", "-1"), "--port"),
        (("serve", "--host", ""), "argument --host: must not be empty"),
        (
            ("serve", "--cache-size", "-1"),
            "must be a number of GB, 0 or more and at most 1,000,000, ",
        ),
        (("serve", "--cache-size", "1e300"), "at most 1,000,000, not '1e300'"),
        (("serve", "--suffix-index-tokens", "9" * 20), "an integer from 0 to 67108864, not '999"),
        (("serve", "--cache-size", "nan"), "--cache-size"),
        (("serve", "--cache-size", "inf"), "--cache-size"),
        (("serve", "--max-num-seqs", "0"), "must be an integer at least 1, not '0'"),
        (("serve", "--max-num-batched-tokens", "1.5"), "--max-num-batched-tokens"),
        (("serve", "--plugin-config", "{"), "argument --plugin-config: must be a JSON object"),
        (("serve", "--plugin-config", "[]"), "--plugin-config"),
        (("serve", "--device", ""), "--device"),
        (("serve", "--unknown"), "--unknown"),
        (("serve", "a", "b"), "b"),
    ],
)
def test_invalid_command_line_is_refused_with_a_message(capfd, arguments, message):
    assert message in refused(capfd, *arguments)


def test_missing_model_directory(capfd, tmp_path):
    missing = str(tmp_path / "nowhere")
    line = refused(capfd, "serve", missing, "--port", "0")
    assert line == f"fastovms: model directory {missing} does not exist\n"


def test_directory_that_is_no_model(capfd, tmp_path):
    line = refused(capfd, "serve", str(tmp_path), "--port", "0")
    assert "has no openvino_model.xml" in line


def test_broken_model_is_refused_by_its_path(capfd, tmp_path):
    for name in ("model.xml", "model.bin", "tokenizer.xml", "detokenizer.xml"):
        (tmp_path / f"openvino_{name}").write_text('<net name="x" version="11"/>')
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 10, "n_ctx": 10, "eos_token_id": 1})
    )
    line = refused(capfd, "serve", str(tmp_path), "--port", "0")
    assert str(tmp_path) in line


def test_port_in_use(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(capfd, "serve", "--port", str(port))
    assert line == f"fastovms: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_address_of_another_machine_is_refused(capfd):
    assert "cannot listen on 203.0.113.1:0" in refused(capfd, "serve", "--host", "203.0.113.1",
                                                       "--port", "0")  # fmt: skip


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


@pytest.mark.slow
def test_help_flag_prints_the_usage():
    done = subprocess.run(
        [sys.executable, "-m", "fastovms", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.startswith("usage: fastovms [-h]")


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
    every = common | {"--model-name", "--config-path"} | {flag.name for flag in FLAGS}
    assert len(common) == 10
    found = set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE)) - {"--help-all"}
    assert found == (every if shows_all else common)
    assert "(default: 8000)" in " ".join(shown.split())
    assert ("--help-all: models, models of a hub, network" in shown) is not shows_all


OF_ALL = {"fastovms", "fastovms.__main__", "fastovms.cli", "fastovms.cli.command",
          "fastovms.cli.main", "fastovms.errors", "fastovms.quoting", "fastovms.system",
          "fastovms.system.memory"}  # fmt: skip
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
def test_a_command_imports_what_it_needs(line, own, parts):
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", [("serve",), ("pull", "a/b")])
def test_a_signal_before_anything_is_served(number, arguments):
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


def test_the_demo_model_is_inside_the_package():
    assert DEMO_MODEL.parent.name == "fastovms"


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
    monkeypatch.setattr(compiling, "CompileAhead", found.append)
    monkeypatch.setattr(app, "serve", lambda config, log, ahead, sockets: None)
    main(["serve", *line, "--port", "0", "--model-repository-path", str(tmp_path)])
    assert len(found) == is_ahead
