"""Graphs give the log probabilities that the weights of the file give, computed apart from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from fastovms.engine.model.graph.paging import applies_sliding_window, read_paged_graph
from fastovms.gguf.decoder_graph import build_decoder
from fastovms.gguf.file_reader import read_gguf
from fastovms.gguf.hyperparameters import read_hyperparameters
from fastovms.gguf.tensor_types import TENSOR_TYPES
from tests.engine.reference import EXACT
from tests.gguf.numpy_decoder import NumpyDecoder
from tests.gguf.tiny_models import HEAD_SIZE, TOKENS, TinyModel, write_model

RNG = np.random.default_rng(0)
ATTENTION = ("attn_q", "attn_k", "attn_v")
SCALED = {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
VARIANTS = {
    "llama": TinyModel(),
    "llama of all types": TinyModel(types=tuple(map(Type, TENSOR_TYPES)), seed=1),
    "llama with biases": TinyModel(biases=(*ATTENTION, "attn_output", "ffn_down"), is_tied=True),
    "llama 3.1": TinyModel(extra={"rope_freqs.weight": RNG.uniform(1, 8, HEAD_SIZE // 2)}),
    "llama, linear": TinyModel(settings={"rope.scaling.type": "linear", **SCALED}),
    "llama, yarn": TinyModel(settings={"rope.scaling.type": "yarn", **SCALED}),
    "mistral": TinyModel(settings={"attention.sliding_window": 9}),
    "qwen2": TinyModel("qwen2", biases=ATTENTION, types=(Type.Q8_0, Type.Q4_0)),
    "qwen3": TinyModel("qwen3", types=(Type.Q4_K, Type.Q6_K), is_tied=True),
    "gemma": TinyModel("gemma", is_tied=True),
    "gemma3": TinyModel(
        "gemma3",
        is_tied=True,
        settings={
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "final_logit_softcapping": 9.0,
        },
    ),
    "phi3": TinyModel("phi3", settings={"attention.sliding_window": 9}, types=(Type.Q5_K,)),
    "phi3, longrope": TinyModel(
        "phi3",
        settings={
            "rope.dimension_count": 12,
            "rope.scaling.attn_factor": 1.19,
            "rope.scaling.original_context_length": 25,
        },
        extra={
            "rope_factors_short.weight": RNG.uniform(1, 2, 6),
            "rope_factors_long.weight": RNG.uniform(1, 8, 6),
        },
    ),
}


def build(path: Path) -> ov.Model:
    file = read_gguf(path)
    return build_decoder(file, read_hyperparameters(file.metadata))


class Session:
    """Computes log probabilities of one text, in parts."""

    def __init__(self, model: ov.Model) -> None:
        self._request = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()

    def log_probabilities(self, *parts: list[int]) -> NDArray[np.float64]:
        self._request.reset_state()
        past, logits = 0, []
        for part in parts:
            end = past + len(part)
            inputs: dict[str, Any] = {
                "input_ids": np.array([part]),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(past, end)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            self._request.infer(inputs)
            logits.append(self._request.get_tensor("logits").data[0].astype(np.float64))
            past = end
        values = np.concatenate(logits)
        values -= values.max(axis=1, keepdims=True)
        return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_log_probabilities(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", VARIANTS[name])
    session = Session(build(tmp_path / "m.gguf"))
    reference = NumpyDecoder(tmp_path / "m.gguf")
    text = np.random.default_rng(1).integers(0, len(TOKENS), 30).tolist()
    for length in (20, 30):
        expected = reference.log_probabilities(text[:length])
        assert np.abs(session.log_probabilities(text[:length]) - expected).max() < 1e-3
    if "longrope" not in name:  # where the later part would decide about the earlier one
        assert np.abs(session.log_probabilities(text[:13], text[13:]) - expected).max() < 1e-3


@pytest.mark.parametrize("name", ["mistral", "gemma3", "phi3", "llama"])
def test_paged_attention_sees_the_windows(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", VARIANTS[name])
    ov.save_model(build(tmp_path / "m.gguf"), tmp_path / "openvino_model.xml")
    paged = read_paged_graph(ov.Core(), tmp_path).model
    assert applies_sliding_window(paged) == (name != "llama")
