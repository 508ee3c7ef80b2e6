"""The tiny model is a working stateful, paged and genai model with sound logits."""

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
from openvino._offline_transformations import paged_attention_transformation

from bench.models import main, write_model
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES, Shape
from tests.paths import FIXTURES

TINY = SHAPES["tiny"]
TINY_SHAPES = {name: shape for name, shape in SHAPES.items() if name.startswith("tiny")}
NUM_TOKENS = 300
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def compiled() -> ov.CompiledModel:
    return ov.Core().compile_model(LlamaGraph(TINY, NUM_TOKENS, seed=1).build(), "CPU", EXACT)


@pytest.fixture(scope="module")
def prompt() -> NDArray[np.int64]:
    return np.random.default_rng(2).integers(0, NUM_TOKENS, 40)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    shutil.copytree(FIXTURES / "byte_level", directory, dirs_exist_ok=True)
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (directory / "generation_config.json").write_text('{"eos_token_id": [0, 5]}')
    return directory


def infer(request: ov.InferRequest, ids: NDArray[np.int64]) -> Logits:
    """One call of the stateful model: ids [B, Q] of new texts; logits [B, Q, V]."""
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        "beam_idx": np.arange(len(ids), dtype=np.int32),
    }
    logits: Logits = request.infer(inputs)["logits"].copy()
    return logits


@pytest.mark.parametrize("shape", TINY_SHAPES.values(), ids=TINY_SHAPES.keys())
def test_paged_attention_gives_the_same_logits(shape: Shape) -> None:
    stateful = ov.Core().compile_model(LlamaGraph(shape, NUM_TOKENS, seed=1).build(), "CPU", EXACT)
    prompt = np.random.default_rng(2).integers(0, NUM_TOKENS, 90)
    expected = infer(stateful.create_infer_request(), prompt[None])[0]

    model = LlamaGraph(shape, NUM_TOKENS, seed=1).build()
    paged_attention_transformation(model)
    paged = ov.Core().compile_model(model, "CPU", EXACT)
    request = paged.create_infer_request()
    num_blocks = 3
    caches = [port for port in paged.inputs if "_cache." in port.get_any_name()]
    assert len(caches) == 2 * shape.num_hidden_layers
    for port in caches:
        block = [size.get_length() for size in list(port.get_partial_shape())[1:]]
        assert block == [shape.num_key_value_heads, 32, shape.head_dim]
        request.set_tensor(port, ov.Tensor(port.get_element_type(), [num_blocks, *block]))
    inputs: dict[str, NDArray[np.int64] | NDArray[np.int32]] = {
        "input_ids": prompt,
        "position_ids": np.arange(len(prompt)),
        "past_lens": np.array([0], np.int32),
        "subsequence_begins": np.array([0, len(prompt)], np.int32),
        "block_indices": np.array([1, 0, 2], np.int32),
        "block_indices_begins": np.array([0, num_blocks], np.int32),
        "max_context_len": np.array(len(prompt), np.int32),
    }
    logits = request.infer(inputs)["logits"]
    np.testing.assert_allclose(logits.reshape(expected.shape), expected, atol=1e-3)


def test_sliding_window_hides_earlier_tokens(prompt: NDArray[np.int64]) -> None:
    """One layer sees the window, itself included: what comes before it changes nothing."""
    shape = replace(TINY, sliding_window=10, num_hidden_layers=1)
    model = ov.Core().compile_model(LlamaGraph(shape, NUM_TOKENS, seed=1).build(), "CPU", EXACT)
    changed = prompt.copy()
    changed[:10] += 1
    before, after = (infer(model.create_infer_request(), ids[None])[0] for ids in (prompt, changed))
    assert np.abs(before[18] - after[18]).max() > 1e-2
    np.testing.assert_allclose(before[19:], after[19:], atol=1e-4)


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


def test_weights_stay_compressed_and_operations_are_fused(compiled: ov.CompiledModel) -> None:
    nodes = compiled.get_runtime_model().get_ordered_ops()
    layer_types = [node.get_rt_info()["layerType"].astype(str) for node in nodes]
    num_layers = TINY.num_hidden_layers
    assert layer_types.count("FullyConnected") == 7 * num_layers + 1
    assert layer_types.count("RMS") == 2 * num_layers + 1
    assert layer_types.count("RoPE") == 2 * num_layers
    assert layer_types.count("ScaledDotProductAttention") == num_layers
    weights = [
        node.input(1).get_element_type().get_type_name()
        for node, layer_type in zip(nodes, layer_types, strict=True)
        if layer_type == "FullyConnected"
    ]
    assert set(weights) == {"u8"}


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
