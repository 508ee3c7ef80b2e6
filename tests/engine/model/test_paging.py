"""Which models can be paged, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from bench.graph import LlamaGraph
from bench.shapes import SHAPES
from fastovms.backends.paged.window import MIN_EXACT_LEN
from fastovms.engine.model.attention_masks import Attention, attentions_of
from fastovms.engine.model.paging import (
    SAMPLED_TOKEN_INDICES,
    applies_sliding_window,
    read_max_transformed_len,
    read_paged_graph,
    reason_of,
)
from fastovms.errors import ConfigurationError
from tests.engine.conftest import TINY_SHAPES
from tests.paths import TINY_VLM


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", "RuntimeError"),
        ("out of luck", "out of luck"),
        ("Exception from a.cpp:3:\nCheck failed at b.cpp:4:\nno such thing\n\n", "no such thing"),
        ("Check 'a >= b' failed at /home/x/src/c.cpp:15\n", "Check 'a >= b' failed"),
    ],
)
def test_what_is_wrong_without_a_trace(message: str, reason: str) -> None:
    assert reason_of(RuntimeError(message)) == reason


MODELS = Path(__file__).parents[2] / "models" / "architectures"


def parameter(name: str, dtype: type = np.int64) -> ov.Node:
    node = ops.parameter([-1, -1], dtype, name=name)
    node.output(0).set_names({name})
    return node


def recurrent(inputs: ov.Node, name: str) -> tuple[ov.Node, ov.Node]:
    """Something that depends on the inputs so far, and what keeps it."""
    past = ops.read_value(ops.constant(np.zeros((1, 1), np.float32)), name, np.float32, [1, 1])
    total = ops.reduce_sum(ops.convert(inputs, np.float32), ops.constant(np.array([0, 1])), True)
    state = ops.add(past, total)
    return state, ops.assign(state, name)


def with_output(node: ov.Node, name: str = "logits") -> ov.Node:
    node.output(0).set_names({name})
    return ops.result(node)


def stateless(*names: str, output: str = "logits") -> ov.Model:
    inputs = [parameter(name) for name in names]
    result = with_output(ops.add(ops.convert(inputs[0], np.float32), np.float32(1)), output)
    return ov.Model([result], inputs, "model")


def recurrent_model() -> ov.Model:
    inputs = parameter("input_ids")
    state, assign = recurrent(inputs, "state")
    return ov.Model([with_output(state)], [assign], [inputs], "model")


def hybrid_model() -> ov.Model:
    model = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    inputs = model.input("input_ids").get_node()
    state, assign = recurrent(inputs, "conv.0")
    logits = ops.add(model.output("logits").get_node().input_value(0), state)
    sinks = [*model.get_sinks(), assign]
    return ov.Model([with_output(logits)], sinks, model.get_parameters(), "model")


def with_input(name: str) -> ov.Model:
    model = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    further = parameter(name, np.float32)
    logits = ops.add(
        model.output("logits").get_node().input_value(0), ops.reduce_sum(further, np.array([0, 1]))
    )
    parameters = [*model.get_parameters(), further]
    return ov.Model([with_output(logits)], model.get_sinks(), parameters, "model")


def with_mask(change: Callable[[ov.Node, ov.Node], ov.Node]) -> ov.Model:
    """A model whose masks are changed, given the indices of keys beside them."""
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


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: stateless("inputs_embeds"), "it takes embeddings in place of tokens"),
        (
            lambda: stateless("decoder_input_ids", "encoder_hidden_states"),
            "it is part of an encoder-decoder model",
        ),
        (lambda: stateless("input_features"), "it takes images or sound"),
        (
            lambda: stateless("input_ids", "past_key_values.0.key"),
            "it was exported without state; export it again with optimum-cli",
        ),
        (lambda: stateless("tokens"), "it has no input named input_ids"),
        (
            lambda: stateless("input_ids", output="last_hidden_state"),
            "it is an encoder, such as an embedding model",
        ),
        (lambda: stateless("input_ids", output="scores"), "it has no output named logits"),
        (lambda: stateless("input_ids", "token_type_ids"), "it is an encoder"),
        (lambda: stateless("input_ids"), "it was exported without state"),
        (recurrent_model, "it has no attention, as recurrent models have none"),
        (hybrid_model, r"hybrid model: part of its state is not attention's .* \(conv\.0\)"),
        (
            lambda: with_input("conv_state_table.0"),
            r"hybrid model: part of its state is not attention's .* \(conv_state_table\.0\)",
        ),
        (
            lambda: with_input("token_type_ids"),
            "it needs inputs that a text has not got: token_type_ids",
        ),
    ],
)
def test_a_model_that_cannot_be_paged_is_refused_with_the_reason(
    make: object, reason: str, tmp_path: Path
) -> None:
    assert callable(make)
    ov.save_model(make(), tmp_path / "openvino_model.xml")
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        read_paged_graph(ov.Core(), tmp_path)
    assert str(refusal.value).startswith(f"the model in {tmp_path} cannot be served: ")
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_only_sampled_tokens_are_projected_by_a_head_of_any_kind(
    tiny_models: dict[str, Path], name: str
) -> None:
    model = read_paged_graph(ov.Core(), tiny_models[name]).model
    assert SAMPLED_TOKEN_INDICES in {port.get_any_name() for port in model.inputs}


@pytest.mark.parametrize("follow", ["soft cap", "bias and scale"])
def test_a_head_is_found_below_what_follows_it(follow: str, tmp_path: Path) -> None:
    model = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    logits = model.output("logits").get_node().input_value(0)
    if follow == "soft cap":
        logits = ops.multiply(
            ops.constant(np.float32(30)), ops.tanh(ops.divide(logits, np.float32(30)))
        )
    else:
        logits = ops.multiply(ops.add(ops.constant(np.float32([[[1]]])), logits), np.float32(0.5))
    model = ov.Model([with_output(logits)], model.get_sinks(), model.get_parameters(), "model")
    ov.save_model(model, tmp_path / "openvino_model.xml")
    paged = read_paged_graph(ov.Core(), tmp_path).model
    assert SAMPLED_TOKEN_INDICES in {port.get_any_name() for port in paged.inputs}


@pytest.mark.parametrize(("window", "expected"), [(None, False), (40, True)])
def test_a_sliding_window_is_recognised(window: int | None, expected: bool, tmp_path: Path) -> None:
    shape = replace(SHAPES["tiny"], sliding_window=window)
    ov.save_model(LlamaGraph(shape, 300, seed=0).build(), tmp_path / "openvino_model.xml")
    assert applies_sliding_window(read_paged_graph(ov.Core(), tmp_path).model) is expected


@pytest.mark.parametrize("change", [every_third_key_hidden, bent_bias])
def test_masks_of_another_form_leave_hardly_any_text(
    change: Callable[[ov.Node, ov.Node], ov.Node], tmp_path: Path
) -> None:
    ov.save_model(with_mask(change), tmp_path / "openvino_model.xml")
    exact = read_paged_graph(ov.Core(), tmp_path).max_exact_len
    assert exact is not None
    assert exact.num_tokens < MIN_EXACT_LEN
    assert read_max_transformed_len(ov.Core(), tmp_path / "openvino_model.xml", 1024) == exact


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("phi3-longrope", 64),
        ("llama4-attention-chunks", 24),
        ("gpt_neo-window", 24),
        ("mpt-ALiBi", 1),
        ("falcon-ALiBi", 1),
        ("bloom-ALiBi", None),
        ("mistral-window", None),
        ("gemma3", None),
        ("gpt2", None),
    ],
)
def test_what_the_transformation_alone_leaves_out(name: str, expected: int | None) -> None:
    exact = read_max_transformed_len(ov.Core(), MODELS / name / "openvino_model.xml", 160)
    assert (None if exact is None else exact.num_tokens) == expected


def test_of_a_model_that_is_not_transformed_nothing_is_known(tmp_path: Path) -> None:
    graph = tmp_path / "openvino_model.xml"
    assert read_max_transformed_len(ov.Core(), graph, 160) is None
    ov.save_model(recurrent_model(), graph)
    assert read_max_transformed_len(ov.Core(), graph, 160) is None


def test_attention_of_single_operations_is_named(tmp_path: Path) -> None:
    inputs = parameter("input_ids")
    state, assign = recurrent(inputs, "state")
    logits = with_output(ops.softmax(state, 1))
    ov.save_model(ov.Model([logits], [assign], [inputs], "model"), tmp_path / "openvino_model.xml")
    with pytest.raises(ConfigurationError, match="no attention of it was exported as OpenVINO's"):
        read_paged_graph(ov.Core(), tmp_path)


def test_the_language_part_of_a_model_of_images_has_masks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    graph = TINY_VLM / "openvino_language_model.xml"
    assert read_max_transformed_len(ov.Core(), graph, 160) is None
    assert "cannot be read" not in caplog.text
    assert attentions_of(ov.Core().read_model(graph), 160).layers == (Attention(), Attention())
