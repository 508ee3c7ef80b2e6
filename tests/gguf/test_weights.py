"""Tensors of a file as constants of a graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type

from fastovms.errors import ConfigurationError
from tests.engine.reference import EXACT
from tests.gguf.test_decoder_graph import build
from tests.gguf.tiny_models import LAYERS, TinyModel, write_model


def test_weights_stay_quantized(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", TinyModel(types=(Type.Q4_K,), is_tied=True))
    compiled = ov.Core().compile_model(build(tmp_path / "m.gguf"), "CPU", EXACT)
    types = [
        str(node.get_rt_info()["outputPrecisions"].astype(str))
        for node in compiled.get_runtime_model().get_ordered_ops()
        if node.get_rt_info()["layerType"].astype(str) == "Const" and len(node.shape) > 1
        and np.prod(node.shape) > 5_000
    ]  # fmt: skip
    assert sorted(set(types)) == ["i8", "u4"]
    assert types.count("u4") == 6 * LAYERS + 2  # the tied one has two users


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            TinyModel(extra={"blk.0.attn_sinks.weight": np.ones(4)}),
            "architecture llama is not taken with the tensor blk.0.attn_sinks.weight$",
        ),
        (
            TinyModel("gemma", extra={"cls.weight": np.ones(4), "cls.bias": np.ones(4)}),
            "not taken with the tensor cls.bias and 1 more",
        ),
        (
            TinyModel("qwen2", settings={"block_count": 4}),
            "tensor blk.3.attn_norm.weight is missing",
        ),
        (
            TinyModel(settings={"attention.head_count": 2}),
            r"blk.0.attn_q.weight is of shape \[64, 256\], not of \[32, 256\]",
        ),
        (
            TinyModel("phi3", extra={"rope_factors_long.weight": np.ones(8)}),
            "tensor rope_factors_short.weight is missing",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(model: TinyModel, message: str, tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", model)
    with pytest.raises(ConfigurationError, match=message):
        build(tmp_path / "m.gguf")
