"""Tests that the graphs that `--configure` writes are read back."""

from __future__ import annotations

import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fastovms.app.catalog import ModelFinder
from fastovms.cli.main import main
from fastovms.parts.ovms.graph import read_graph
from fastovms.server_config import (
    CHAT,
    DEMO_MODEL,
    ENCODER,
    ENGINE,
    FILES,
    ModelSource,
    RepositoryConfig,
)
from tests.encoder_models import encoder_dir
from tests.image_models import diffusion_dir
from tests.speech_models import kokoro_dir, speecht5_dir, whisper_dir

CONFIGURE = "--configure --model_path m --task text_generation"
DEFAULTS = {ENGINE.device: "CPU", ENGINE.enable_prefix_caching: True}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with a model in `m` and draft models."""
    for name in ("m/ORG-draft", "drafts/small", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "m" / "openvino_model.xml").touch()
    (tmp_path / "m" / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configure(line: str) -> int:
    try:
        return main(shlex.split(line))
    except SystemExit as exit:
        return int(exit.code or 0)


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("", {}),
        ("--target_device GPU.1 --cache_size 4 --max_num_seqs 8 --max_num_batched_tokens 512",
         {ENGINE.device: "GPU.1", ENGINE.cache_size: 4, ENGINE.max_num_seqs: 8,
          ENGINE.max_num_batched_tokens: 512}),
        ("--enable_prefix_caching false", {ENGINE.enable_prefix_caching: False}),
        ("--tool_parser hermes3 --reasoning_parser qwen3",
         {CHAT.tool_parser: "hermes3", CHAT.reasoning_parser: "qwen3"}),
        ("--tool_parser auto --reasoning_parser none", {CHAT.reasoning_parser: "none"}),
        ("--draft_source_model drafts/small", {ENGINE.draft_model: "{m}/../drafts/small"}),
        ("--draft_source_model {0}/drafts/small", {ENGINE.draft_model: "{0}/drafts/small"}),
        ("--draft_source_model ORG/draft", {ENGINE.draft_model: "{m}/ORG-draft"}),
        ("--gguf_filename m.gguf", {FILES.path: "{m}/m.gguf"}),
        ("--model_name a --rest_port 0 --log_level DEBUG", {}),
        ("--kv_cache_precision u8 --cache_dir .ov_cache",
         {ENGINE.plugin_config: {"KV_CACHE_PRECISION": "u8", "CACHE_DIR": ".ov_cache"}}),
        ("""--plugin_config '{"A": "it\\u0027s \\\\ \\"b\\"\\n\\u00e9", "B": 1}'""",
         {ENGINE.plugin_config: {"A": 'it\'s \\ "b"\n\u00e9', "B": 1}}),
        ("--enable-prompt-lookup --max_prompt_len 64 --model_distribution_policy TENSOR_PARALLEL",
         {ENGINE.plugin_config: {"prompt_lookup": True, "MAX_PROMPT_LEN": 64,
                                 "MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL"}}),
    ],
)  # fmt: skip
def test_configured_settings_are_read_back_from_the_graph(folder, capfd, flags, settings):
    line = f"{CONFIGURE} {flags.replace('{0}', str(folder))}"
    assert configure(line) == 0
    assert capfd.readouterr() == ("m/graph.pbtxt\n", "")
    expected = {FILES.path: folder / "m", **DEFAULTS, **settings}
    for name in (FILES.path, ENGINE.draft_model):
        if name in expected:
            place = str(expected[name]).replace("{m}", f"{folder}/m").replace("{0}", str(folder))
            expected[name] = Path(place)
    node = read_graph(folder / "m" / "graph.pbtxt")
    assert (node.settings.given, node.unused) == (expected, [])
    assert list(folder.glob("m/*.partial")) == list(folder.glob("m/.*.partial")) == []


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("--task embeddings", {ENCODER.task: "embeddings"}),
        ("--task embeddings --pooling LAST --normalize false --truncate true",
         {ENCODER.task: "embeddings", ENCODER.pooling: "last", ENCODER.normalize: False,
          ENCODER.truncate: True}),
        ("--task embeddings --pooling auto --target_device GPU",
         {ENCODER.task: "embeddings", ENGINE.device: "GPU"}),
        ("--task rerank --max_allowed_chunks 44 --max_model_len 512",
         {ENCODER.task: "rerank", ENCODER.max_allowed_chunks: 44, ENGINE.max_model_len: 512}),
        ("""--task rerank --cache_dir c --plugin_config '{"NUM_STREAMS": 2}'""",
         {ENCODER.task: "rerank",
          ENGINE.plugin_config: {"NUM_STREAMS": 2, "CACHE_DIR": "c"}}),
    ],
)  # fmt: skip
def test_configured_graph_of_an_encoder_is_read_back(folder, flags, settings):
    assert configure(f"--configure --model_path m {flags}") == 0
    node = read_graph(folder / "m" / "graph.pbtxt")
    expected = {FILES.path: folder / "m", ENGINE.device: "CPU", **settings}
    assert (node.settings.given, node.unused) == (expected, [])


@pytest.mark.parametrize(
    ("make", "task"),
    [
        (encoder_dir, "embeddings"),
        (partial(encoder_dir, 1), "rerank"),
        (whisper_dir, "speech2text"),
        (speecht5_dir, "text2speech"),
        (kokoro_dir, "text2speech"),
        (diffusion_dir, "image_generation"),
    ],
)
def test_task_of_the_graph_follows_from_the_files(tmp_path, make, task):
    shutil.copytree(make(), tmp_path / "m")
    assert configure(f"--configure --model_path {tmp_path / 'm'}") == 0
    given = read_graph(tmp_path / "m" / "graph.pbtxt").settings.given
    assert given[ENCODER.task] == task
    model = ModelFinder(tmp_path, RepositoryConfig()).find(ModelSource(str(tmp_path / "m"), ("a",)))
    assert model.encoder.task == task


def test_unused_options_are_written_to_the_graph(folder, caplog):
    line = (
        f"{CONFIGURE} --pipeline_type VLM --dynamic_split_fuse false --weight-format int4 "
        "--enable_tool_guided_generation true --cache_interval_multiplier 16"
    )
    assert configure(line) == 0
    told = [record.getMessage() for record in caplog.records]
    assert told == ["--weight-format is not used: models are downloaded as they are"]
    assert [line.split()[0] for line in read_graph(folder / "m" / "graph.pbtxt").unused] == [
        "pipeline_type",
        "dynamic_split_fuse",
        "enable_tool_guided_generation",
        "cache_interval_multiplier",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--configure --task text_generation", "--configure needs --model-path"),
        ("--configure --model_path none", "must be the directory of a model, not none"),
        ("--configure --model_path m/m.gguf", "the directory of a model, not m/m.gguf"),
        ("--configure --model_path empty",
         "empty has no openvino_model.xml or openvino_language_model.xml"),
        (f"{CONFIGURE} --gguf_filename x.gguf", "--model-path: m has no x.gguf"),
        ("--configure --model_path m --task rerank --cache_size 4",
         "a graph for rerank has no option for --cache-size"),
        ("--configure --model_path m --task embeddings --max_allowed_chunks 4",
         "a graph for embeddings has no option for --max-allowed-chunks"),
        ("--configure --model_path m --task embeddings --pooling MAX", "--pooling: must be "),
        (f"{CONFIGURE} --max_num_seqs 0", "--max-num-seqs: must be an integer at least 1, not '0'"),
        (f"{CONFIGURE} --max_num_seqs {2**64}", "max_num_seqs of a graph must be an integer"),
        (f"{CONFIGURE} --cache_size 0.5", "cache_size of a graph must be an integer from 0 to "),
        (f"{CONFIGURE} --pipeline_type LMM", "--pipeline-type: must be AUTO, LM"),
        (f"{CONFIGURE} --tool_parser other", "--tool-parser: must be "),
        (f"{CONFIGURE} --draft_source_model ORG/x", "neither ORG/x nor m/ORG-x exists"),
        (f"{CONFIGURE} --plugin_config '{{\"A\": []}}'", "plugin_config A must be a string"),
        (f"{CONFIGURE} --max-model-len 8k",
         "a graph for text_generation has no option for --max-model-len"),
        (f"{CONFIGURE} --unknown", "there is no flag --unknown"),
    ],
)  # fmt: skip
def test_invalid_configure_line_is_refused_and_writes_no_graph(folder, capfd, line, message):
    assert configure(line) == 2
    output = capfd.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1), output.err
    assert message in output.err
    assert not (folder / "m" / "graph.pbtxt").exists()


@pytest.mark.parametrize("flags", ["", "--overwrite_models"])
def test_existing_graph_is_overwritten(folder, flags):
    graph = folder / "m" / "graph.pbtxt"
    graph.write_text("mine")
    assert configure(f"{CONFIGURE} {flags} --cache_size 2") == 0
    assert read_graph(graph).settings.given[ENGINE.cache_size] == 2


def test_directory_that_cannot_be_written_is_refused(folder, capfd):
    (folder / "m" / ".graph.pbtxt.partial").mkdir()
    assert configure(CONFIGURE) == 2
    assert capfd.readouterr().err == "fastovms: cannot write m/graph.pbtxt: Is a directory\n"


def test_model_is_served_by_its_configured_graph(folder):
    shutil.copytree(DEMO_MODEL, "demo")
    line = "--configure --model_path demo --max_num_seqs 8 --kv_cache_precision f32"
    assert configure(line) == 0
    finder = ModelFinder(folder / "hub", RepositoryConfig())
    config: Any = finder.find(ModelSource("demo"))
    assert (config.names, config.path.resolve()) == (("demo",), folder / "demo")
    assert (config.engine.max_num_seqs, config.engine.enable_prefix_caching) == (8, True)
    assert config.engine.plugin_config == {"KV_CACHE_PRECISION": "f32"}
