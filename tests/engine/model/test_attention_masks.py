"""Tests of masks: windows, slopes, and masks that are neither."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.backends.model_files import MIN_EXACT_LEN
from fastovms.engine.model.attention_masks import (
    LayerAttention,
    ModelAttention,
    UnknownMask,
    _describe,
    attentions_of,
)
from fastovms.engine.model.paging import read_paged_graph, read_transformed
from fastovms.server_config import DEMO_MODEL


def with_mask(change: Callable[[ov.Node, ov.Node], ov.Node]) -> ov.Model:
    """Returns a model whose masks are changed by a function of the keys' indices."""
    model = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    for layer in model.get_ordered_ops():
        if layer.get_type_name() == "ScaledDotProductAttention":
            mask = layer.input_value(3)
            length = ops.gather(ops.shape_of(mask), np.int64(3), np.int64(0))
            keys = ops.range(np.int64(0), length, np.int64(1), "i64")
            changed = change(mask.get_node(), keys)
            layer.input(3).replace_source_output(changed.output(0))
    model.validate_nodes_and_infer_types()
    return model


def every_third_key_hidden(mask: ov.Node, keys: ov.Node) -> ov.Node:
    is_third = ops.equal(ops.mod(keys, np.int64(3)), np.int64(0))
    return ops.select(is_third, ops.constant(np.float32(-65504)), mask)


def bent_bias(mask: ov.Node, keys: ov.Node) -> ov.Node:
    return ops.add(mask, ops.sqrt(ops.convert(keys, np.float32)))


@pytest.mark.parametrize("change", [every_third_key_hidden, bent_bias])
def test_masks_of_another_form_leave_hardly_any_text(
    change: Callable[[ov.Node, ov.Node], ov.Node], tmp_path: Path
) -> None:
    ov.save_model(with_mask(change), tmp_path / "openvino_model.xml")
    exact = read_paged_graph(ov.Core(), tmp_path).max_exact_len
    assert exact is not None
    assert exact.num_tokens < MIN_EXACT_LEN
    of_genai = read_transformed(ov.Core(), tmp_path / "openvino_model.xml", 1024).max_exact_len
    assert of_genai is not None
    assert of_genai.num_tokens <= exact.num_tokens


def test_mask_that_depends_on_another_input_is_unknown() -> None:
    model = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    other = ops.parameter([1], np.float32, name="other")
    other.output(0).set_names({"other"})
    for layer in model.get_ordered_ops():
        if layer.get_type_name() == "ScaledDotProductAttention":
            mask = ops.add(layer.input_value(3), other)
            layer.input(3).replace_source_output(mask.output(0))
    model.add_parameters([other])
    with pytest.raises(UnknownMask):
        attentions_of(model, 100)


def test_biases_that_are_rounded_are_taken_up_to_where_they_bend() -> None:
    def row(layer: int, position: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        bits = np.arange(position + 1, dtype=np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)  # to bf16
        return np.stack([rounded * np.float32(slope) for slope in (0.5, 0.25)])

    layer = LayerAttention(slopes=(0.5, 0.25))
    assert _describe(row, 1, 256) == ModelAttention((layer,))
    described = _describe(row, 2, 2048)
    assert described.max_len is not None
    assert 256 <= described.max_len < 270
    for attention in described.layers:
        assert np.allclose(attention.slopes or (), (0.5, 0.25), rtol=1e-2)


def test_a_model_that_was_read_is_given_back() -> None:
    """The masks share the model's weights, whose file stays mapped as long as they live."""
    file = DEMO_MODEL / "openvino_model.xml"

    def num_mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(file.with_suffix(".bin")))

    gc.collect()  # models of other tests
    before = num_mapped()
    model = ov.Core().read_model(file)
    assert attentions_of(model, 64).max_len is None
    assert num_mapped() > before
    del model
    gc.collect()
    assert num_mapped() == before
