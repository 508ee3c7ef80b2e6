"""Which models a line and its environment mean, and with which settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fastovms.catalog.finder import ModelFinder
from fastovms.catalog.hub import Repository
from fastovms.cli.environment import read_environment
from fastovms.cli.flags.flags import read_flags
from fastovms.cli.model_choice import chosen_models
from fastovms.cli.parser import parse
from fastovms.config.api_config import ChatConfig
from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import DEMO_MODEL, ModelConfig, ModelLimits, RepositoryConfig
from fastovms.config.service_config import ServiceConfig
from fastovms.config.settings import ENGINE, ModelSource
from fastovms.errors import ConfigurationError
from tests.ovms.test_graph import write as write_graph


def chosen(*line: str, environ: Mapping[str, str] | None = None) -> list[ModelSource]:
    arguments = parse(["serve", *line])
    settings = read_environment(environ or {}) | read_flags(arguments)
    return chosen_models(arguments, settings)[0]


def found(source: ModelSource) -> ModelConfig:
    return ModelFinder(Repository(Path("/nowhere")), RepositoryConfig()).find(source)


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
def test_contradictions(line, message):
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


def test_a_graph(tmp_path):
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


def test_options_without_use_are_told(tmp_path, caplog):
    write_graph(tmp_path, 'models_path: "./" dynamic_split_fuse: false')
    assert found(ModelSource(str(tmp_path))).path == tmp_path
    [record] = caplog.records
    assert record.getMessage().startswith(
        f"{tmp_path}/graph.pbtxt: dynamic_split_fuse is not used: "
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
    with pytest.raises(ConfigurationError, match="--generation-config: there is no file"):
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
