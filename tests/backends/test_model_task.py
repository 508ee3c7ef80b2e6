"""Tests of `fastovms/backends/model_task.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastovms.backends.model_task import (
    check_files,
    find_task,
    graph_file,
    graph_files,
    read_json,
    read_optional,
)
from fastovms.errors import ConfigurationError
from fastovms.params import Task
from fastovms.parts.embeddings.pooling import Pooling, find_pooling
from fastovms.server_config import DEMO_MODEL
from tests.image_models import diffusion_dir


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot read"), ("{", "not valid JSON"), ("[1]", "not a JSON object")],
)
def test_invalid_json_raises_or_reads_as_none_when_optional(tmp_path, content, words):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=words):
        read_json(path)
    assert read_optional(path) == ([1] if content == "[1]" else None)


STATES = b'<net name="a" version="11"><port id="2" names="last_hidden_state,12"/></net>'
LOGITS = b'<net name="a" version="11"><port id="2" names="logits"/></net>'
DECODER = LOGITS.replace(b"logits", b'beam_idx"/><port names="logits')
NEITHER = LOGITS.replace(b"logits", b"boxes")


@pytest.fixture
def make(tmp_path):
    def write(graph: bytes, architecture: str = "BertModel"):
        (tmp_path / "openvino_model.xml").write_bytes(graph)
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("graph", "architecture", "wanted", "task"),
    [
        (STATES, "BertModel", "auto", Task.EMBEDDINGS),
        (STATES, "Qwen3ForCausalLM", "auto", Task.EMBEDDINGS),
        (LOGITS, "XLMRobertaForSequenceClassification", "auto", Task.RERANK),
        (LOGITS, "BertForMaskedLM", "auto", Task.RERANK),
        (DECODER, "Qwen3ForSequenceClassification", "auto", Task.RERANK),
        (DECODER, "Qwen3ForCausalLM", "auto", Task.TEXT_GENERATION),
        (DECODER, "Qwen3ForCausalLM", "rerank", Task.RERANK),
        (STATES, "BertModel", "embeddings", Task.EMBEDDINGS),
    ],
)
def test_task_follows_graph_architecture_and_setting(make, graph, architecture, wanted, task):
    assert find_task(make(graph, architecture), wanted) is task


def test_task_of_the_demo_model_is_text_generation():
    assert find_task(DEMO_MODEL) is Task.TEXT_GENERATION


@pytest.mark.parametrize(
    ("graph", "wanted", "words"),
    [
        (STATES, "rerank", "its graph is for embeddings"),
        (DECODER, "embeddings", "its graph is for text_generation"),
        (NEITHER, "auto", "has none of the outputs last_hidden_state"),
    ],
)
def test_task_that_a_graph_lacks_is_refused(make, graph, wanted, words):
    with pytest.raises(ConfigurationError, match=words):
        find_task(make(graph), wanted)


@pytest.mark.parametrize("graph", [None, b"<net", b"version https://git-lfs.github.com/spec/v1"])
def test_a_directory_without_a_graph_is_left_to_others(tmp_path, graph):
    if graph is not None:
        (tmp_path / "openvino_model.xml").write_bytes(graph)
    assert find_task(tmp_path) is Task.TEXT_GENERATION
    assert find_task(tmp_path, "embeddings") is Task.EMBEDDINGS


@pytest.mark.parametrize(
    ("files", "config", "wanted", "pooling"),
    [
        ({}, {}, "auto", Pooling.CLS),
        ({}, {"architectures": ["Qwen3ForCausalLM"]}, "auto", Pooling.LAST),
        ({}, {}, "mean", Pooling.MEAN),
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}}, {}, "auto", Pooling.MEAN),
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}}, {}, "cls", Pooling.CLS),
        ({"1_Pooling/config.json": ["?"]}, {}, "auto", Pooling.CLS),
        ({"modules.json": [{"path": "", "type": "a.Model"}, {"path": "p", "type": "a.Pooling"}],
          "p/config.json": {"pooling_mode_lasttoken": True}}, {}, "auto", Pooling.LAST),
    ],
)  # fmt: skip
def test_pooling_follows_setting_then_files_then_architecture(
    tmp_path, files, config, wanted, pooling
):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    assert find_pooling(tmp_path, wanted, config) is pooling


def test_directory_with_an_index_of_parts_is_for_images(tmp_path: Path) -> None:
    assert find_task(diffusion_dir()) is find_task(diffusion_dir(), "image_generation")
    assert find_task(diffusion_dir()) is Task.IMAGES
    assert graph_file(diffusion_dir()).parent.name == "unet"
    assert len(graph_files(diffusion_dir())) == 4
    with pytest.raises(ConfigurationError, match="its graph is for image_generation"):
        find_task(diffusion_dir(), "rerank")
    (tmp_path / "unet").mkdir()
    with pytest.raises(ConfigurationError, match=r"an image model whose model_index\.json is"):
        check_files(tmp_path)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("qwen2_5_omni", "an Omni model"),
        ("qwen3_omni_moe", "an Omni model"),
    ],
)
def test_models_without_a_backend_are_refused_by_name(tmp_path: Path, kind: str, what: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ConfigurationError, match=rf"it is {what} \({kind}\)"):
        find_task(tmp_path)
