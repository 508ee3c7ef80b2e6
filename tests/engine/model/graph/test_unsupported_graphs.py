"""Models that cannot be paged are refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.model.graph.paging import (
    read_paged_graph,
)
from fastovms.errors import ConfigurationError, UnsupportedModel
from tests.engine.model.graphs import (
    hybrid_model,
    parameter,
    recurrent,
    recurrent_model,
    with_output,
)


def stateless(*names: str, output: str = "logits") -> ov.Model:
    inputs = [parameter(name) for name in names]
    result = with_output(ops.add(ops.convert(inputs[0], np.float32), np.float32(1)), output)
    return ov.Model([result], inputs, "model")


def with_input(name: str) -> ov.Model:
    model = LlamaGraph(SHAPES["tiny"], 300, seed=0).build()
    further = parameter(name, np.float32)
    logits = ops.add(
        model.output("logits").get_node().input_value(0), ops.reduce_sum(further, np.array([0, 1]))
    )
    parameters = [*model.get_parameters(), further]
    return ov.Model([with_output(logits)], model.get_sinks(), parameters, "model")


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
        (hybrid_model, r"hybrid model, and OpenVINO makes no tables of that part .* \(conv\.0\)"),
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


@pytest.mark.parametrize(("make", "may_run"), [(hybrid_model, True), (recurrent_model, False)])
def test_what_has_no_attention_is_tried_on_no_other_backend(
    make: Callable[[], ov.Model], may_run: bool, tmp_path: Path
) -> None:
    ov.save_model(make(), tmp_path / "openvino_model.xml")
    with pytest.raises(ConfigurationError) as refusal:
        read_paged_graph(ov.Core(), tmp_path)
    assert isinstance(refusal.value, UnsupportedModel) is may_run


def test_attention_of_single_operations_is_named(tmp_path: Path) -> None:
    inputs = parameter("input_ids")
    state, assign = recurrent(inputs, "state")
    logits = with_output(ops.softmax(state, 1))
    ov.save_model(ov.Model([logits], [assign], [inputs], "model"), tmp_path / "openvino_model.xml")
    with pytest.raises(ConfigurationError, match="no attention of it was exported as OpenVINO's"):
        read_paged_graph(ov.Core(), tmp_path)
