"""Tests that the tiny model works as a stateful, paged and genai model with sound logits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from numpy.typing import NDArray

from bench.models import main, write_model
from bench.random_models.shapes import SHAPES
from tests.paths import FIXTURES

TINY = SHAPES["tiny"]
NUM_TOKENS = 300
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    shutil.copytree(FIXTURES / "byte_level", directory, dirs_exist_ok=True)
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (directory / "generation_config.json").write_text('{"eos_token_id": [0, 5]}')
    return directory


def infer(request: ov.InferRequest, ids: NDArray[np.int64]) -> Logits:
    """Runs the stateful model once: ids [B, Q] of new texts; returns logits [B, Q, V]."""
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        "beam_idx": np.arange(len(ids), dtype=np.int32),
    }
    logits: Logits = request.infer(inputs)["logits"].copy()
    return logits


@pytest.mark.parametrize(
    ("name", "layers", "head"),
    [
        ("tiny", "u8", "u8"),
        ("tiny-qwen2", "u4", "u8"),
        ("tiny-qwen3", "f16", "f16"),
        ("tiny-fp32", "f32", "f32"),
    ],
)
def test_weights_are_stored_in_their_format(
    name: str, layers: str, head: str, tmp_path: Path, tokenizer: Path
) -> None:
    write_model(SHAPES[name], tmp_path, tokenizer)
    types = {
        node.get_friendly_name().removesuffix("_compressed"): node.get_output_element_type(0)
        for node in ov.Core().read_model(tmp_path / "openvino_model.xml").get_ordered_ops()
        if node.get_type_name() == "Constant"
    }
    assert types["model.layers.0.mlp.up_proj.weight"].get_type_name() == layers
    assert types["model.embed_tokens.weight"].get_type_name() == head
    assert ("lm_head.weight" in types) is not SHAPES[name].tie_word_embeddings


@pytest.mark.nightly
def test_directory_is_complete_and_runs_in_genai(tmp_path: Path, tokenizer: Path) -> None:
    write_model(TINY, tmp_path, tokenizer)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eos_token_id"] == [0, 5]
    assert config["max_position_embeddings"] == 2048

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = 8
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(tmp_path), scheduler, "CPU")
    greedy = pipeline.get_config()
    greedy.max_new_tokens = 24
    greedy.ignore_eos = True
    prompt = ov.Tensor(np.arange(20, 40, dtype=np.int64)[None])
    texts = []
    for request_id in range(2):
        handle = pipeline.add_request(request_id, prompt, greedy)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        texts.append(handle.read_all()[0].generated_ids)
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 12
    known = pipeline.get_tokenizer().get_vocab().values()
    assert max(texts[0]) <= max(known)


def test_tokens_of_partial_characters_are_never_likely(tmp_path: Path, tokenizer: Path) -> None:
    write_model(replace(TINY, vocab_size=16), tmp_path, tokenizer)
    decode = openvino_genai.Tokenizer(str(tmp_path)).decode
    model = ov.Core().compile_model(tmp_path / "openvino_model.xml", "CPU", EXACT)
    num_tokens = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    logits = infer(model.create_infer_request(), np.arange(num_tokens)[None])[0]
    is_part = np.array(["\N{REPLACEMENT CHARACTER}" in decode([i]) for i in range(num_tokens)])
    assert is_part.any()
    assert not is_part[logits.argmax(-1)].any()
    assert logits[:, is_part].max() < logits[:, ~is_part].max(-1).min() / 4


def test_command_writes_a_model(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "model"
    assert main(["tiny", str(directory), "--tokenizer", str(tokenizer)]) == 0
    assert (directory / "openvino_model.xml").is_file()
    assert str(directory) in capsys.readouterr().out
