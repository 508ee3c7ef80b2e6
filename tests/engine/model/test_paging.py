"""Tests of `fastovms/engine/model/paging.py`."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from openvino import opset13
from openvino import opset13 as ops

from bench.random_models.gguf_decoder import GgufModel, write_model
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.model.compilation import (
    EXACT_WEIGHTS_SIZE,
    ExportedModel,
    compile_single_rows,
    with_single_rows,
)
from fastovms.engine.model.devices import reason_of
from fastovms.engine.model.kv_cache import is_state_table
from fastovms.engine.model.model import PagedModel, Precisions, as_float32
from fastovms.engine.model.paging import (
    MAX_WEIGHTS_SIZE,
    TransformedGraph,
    activation_group_size,
    fix_shapes,
    int4_group_size,
    read_paged_graph,
    read_transformed,
    use_own_positions,
)
from fastovms.engine.model.step_inputs import (
    SAMPLED_TOKEN_INDICES,
    StepInputs,
    StepLayout,
    is_single_row,
)
from fastovms.errors import ConfigurationError, UnsupportedModel
from fastovms.gguf.converter import convert
from tests.engine.conftest import TINY_SHAPES
from tests.engine.model.graphs import (
    hybrid_model,
    parameter,
    recurrent,
    recurrent_model,
    with_output,
)

# Positions that a graph counts itself become those of its tokens, in graphs made for the test.


def counting(start: int | None = None) -> ov.Model:
    """Repeats positions for each of a batch of texts of one token: those from the end of what is
    cached, or from a certain one."""
    positions = ops.parameter([-1], np.int64, name="position_ids")
    longest = ops.parameter([], np.int64, name="max_context_len")
    for node in (positions, longest):
        node.output(0).set_names({node.get_friendly_name()})
    first = ops.subtract(longest, np.int64(1)) if start is None else ops.constant(np.int64(start))
    counted = ops.range(first, longest, np.int64(1), "i64")
    row = ops.reshape(counted, np.array([1, 1, -1]), False)
    batch = ops.shape_of(positions)
    repeated = ops.broadcast(row, ops.concat([np.array([3]), batch, np.array([1])], 0))
    return ov.Model([ops.result(repeated)], [positions, longest], "model")


def computed(model: ov.Model) -> list[list[list[int]]]:
    inputs = {"position_ids": np.array([4, 9, 0]), "max_context_len": np.array(10)}
    found: list[list[list[int]]] = ov.Core().compile_model(model, "CPU")(inputs)[0].tolist()
    return found


def test_counted_positions_become_those_of_each_token() -> None:
    model = counting()
    assert computed(model) == [[[9]] * 3] * 3
    use_own_positions(model)
    assert computed(model) == [[[4], [9], [0]]] * 3


@pytest.mark.parametrize("start", [0, 9])
def test_positions_with_a_fixed_start_are_unchanged(start: int) -> None:
    model = counting(start)
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    use_own_positions(model)
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == before


# The inputs of models with states, under the names of `StepInputs`.


MODELS = Path(__file__).parents[2] / "models" / "architectures"


@pytest.mark.parametrize(("name", "has_states"), [("lfm2", True), ("qwen3", False)])
def test_inputs_have_the_names_that_steps_have(name: str, has_states: bool) -> None:
    graph = read_paged_graph(ov.Core(), MODELS / name)
    names = {port.get_any_name() for port in graph.model.inputs}
    tables = {name for name in names if is_state_table(name)}
    assert graph.has_states is has_states
    assert tables == ({"conv_state_table.0", "conv_state_table.1"} if has_states else set())
    caches = {name for name in names if name.startswith(("key_cache.", "value_cache."))}
    fed = names - caches - tables
    assert fed <= set(StepInputs._fields)
    assert "position_ids" in fed
    assert ("state_rows" in fed) is has_states


# Activations are quantized in groups that fit those of the weights.


@pytest.mark.parametrize(
    ("types", "of_activations", "of_int4"),
    [
        ((Type.Q8_0,), 32, None),  # groups of 32, of 8 bits
        ((Type.Q4_0,), 32, 32),
        ((Type.Q4_0, Type.Q8_0, Type.Q8_0), 32, 32),
        ((Type.Q6_K,), 16, None),
        ((Type.Q4_1,), 0, None),  # zero points that are no integers
        ((Type.Q4_K, Type.Q4_K, Type.Q6_K), 16, None),
        ((Type.Q4_0, Type.Q4_0, Type.Q4_0, Type.Q6_K), 32, 32),
        ((Type.F16,), 0, None),
    ],
)
def test_group_sizes_follow_the_types_of_a_gguf_file(
    types: tuple[Type, ...], of_activations: int, of_int4: int | None, tmp_path: Path
) -> None:
    write_model(tmp_path / "model.gguf", GgufModel(types=types))
    directory = tmp_path / "model"
    directory.mkdir()
    convert(tmp_path / "model.gguf", directory)
    model = ov.Core().read_model(directory / "openvino_model.xml")
    assert activation_group_size(model) == of_activations
    files = ExportedModel(directory)
    assert activation_group_size(files.graph.model) == of_activations, "paging changes nothing"
    assert files.int4_group_size == of_int4


@pytest.mark.parametrize(
    ("weight_format", "of_activations", "of_int4"),
    [
        ("int8", 128, None),
        ("int4", 32, 32),
        ("int4-sym-64", None, 64),
        ("int4-sym-channel", None, 128),
        ("fp16", 0, None),
        ("fp32", 0, None),
    ],
)
def test_group_sizes_follow_the_weight_format(
    weight_format: str, of_activations: int | None, of_int4: int | None
) -> None:
    shape = replace(
        SHAPES["tiny"], intermediate_size=128, num_hidden_layers=1, weight_format=weight_format
    )
    model = LlamaGraph(shape, 300, seed=0).build()
    assert of_activations in (None, activation_group_size(model))
    assert int4_group_size(model) == of_int4


def in_groups(size: int) -> ov.Node:
    """A matrix of 2 rows."""
    integers = ops.convert(ops.constant(np.ones((2, 4, size), np.int8)), "f32")
    scaled = ops.multiply(integers, ops.constant(np.ones((2, 4, 1), np.float32)))
    return ops.reshape(scaled, ops.constant(np.array([2, -1])), False)


def in_rows() -> ov.Node:
    integers = ops.convert(ops.constant(np.ones((2, 96), np.int8)), "f32")
    return ops.multiply(integers, ops.constant(np.ones((2, 1), np.float32)))


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (lambda: in_groups(64), 64),
        (lambda: in_groups(96), 32),
        (lambda: in_groups(256), 128),
        (in_rows, 128),
    ],
)
def test_groups_of_activations_divide_those_of_weights(
    matrix: Callable[[], ov.Node], expected: int
) -> None:
    hidden = ops.parameter([-1, -1], np.float32)
    product = ops.matmul(hidden, matrix(), False, True)
    output = ops.result(ops.matmul(product, ops.constant(np.ones((3, 2), np.float32)), False, True))
    assert activation_group_size(ov.Model([output], [hidden], "model")) == expected


def with_zero_points() -> ov.Node:
    """A matrix of 2 rows that cannot be multiplied as integers."""
    integers = ops.convert(ops.constant(np.ones((2, 4, 32), np.uint8)), "f32")
    moved = ops.subtract(integers, ops.constant(np.full((2, 4, 1), 0.5, np.float32)))
    return ops.reshape(moved, ops.constant(np.array([2, -1])), False)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(
    ("matrix", "expected"), [(with_zero_points, 0), (lambda: in_groups(32), 32)]
)
def test_last_matrix_alone_is_not_multiplied_as_integers(
    matrix: Callable[[], ov.Node], expected: int, is_tied: bool
) -> None:
    token_ids = ops.parameter([-1], np.int64)
    last = in_groups(32)
    embedding = last if is_tied else ops.constant(np.ones((2, 128), np.float32))
    hidden = ops.gather(embedding, token_ids, ops.constant(0))
    narrow = ops.matmul(hidden, matrix(), False, True)
    wide = ops.tile(narrow, ops.constant(np.array([1, 64])))
    output = ops.result(ops.matmul(wide, last, False, True))
    for _ in range(4):  # targets of a node have no order
        assert activation_group_size(ov.Model([output], [token_ids], "model")) == expected


# A variant of the model for steps of one row computes what the other one computes.


PROMPT = array("q", range(40, 80))


def step(start: int, end: int, *, num_sequences: int = 1) -> StepInputs:
    layout = StepLayout(32)
    last = [layout.add(PROMPT, start, end, array("i", (1, 2))) for _ in range(num_sequences)]
    return layout.finish(array("q", last))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (step(20, 21), True),
        (step(0, 1), True),
        (step(0, 2), False),
        (step(20, 21, num_sequences=2), False),
        (step(20, 21)._replace(sampled_token_indices=np.empty(0, np.int64)), False),
    ],
)
def test_a_step_of_one_row_has_one_token_whose_logits_are_wanted(
    inputs: StepInputs, expected: bool
) -> None:
    assert is_single_row(inputs) == expected


@pytest.mark.nightly(but=("f32-tiny-qwen3", "u8-tiny-mistral"))
@pytest.mark.parametrize("name", TINY_SHAPES)
@pytest.mark.parametrize("cache", ["f32", "u8"])
def test_single_rows_have_the_logits_of_the_plain_graph(
    tiny_models: dict[str, Path], name: str, cache: str
) -> None:
    files = ExportedModel(tiny_models[name], properties={"KV_CACHE_PRECISION": cache})
    plain = replace(files.choices[0], has_single_rows=False)
    expected = _decoded(files.compile([plain])[1])
    _, model = files.compile([replace(plain, has_single_rows=True)])
    assert model.has_single_rows
    assert np.abs(_decoded(model) - expected).max() < 1e-4 * np.abs(expected).max()


def test_single_rows_are_compiled_while_the_model_runs(tiny_models: dict[str, Path]) -> None:
    files = ExportedModel(tiny_models["tiny"])
    choice = replace(files.choices[0], has_single_rows=True)
    expected = _decoded(files.compile([choice])[1])
    precisions, model = files.compile([choice], single_rows_later=True)
    assert precisions == choice
    assert not model.has_single_rows
    before = _decoded(model)
    assert model.awaits_single_rows
    compile_single_rows(model)
    assert (model.has_single_rows, model.awaits_single_rows) == (True, False)
    assert (_decoded(model) == expected).all()
    assert np.abs(before - expected).max() < 1e-4 * np.abs(expected).max()


def _decoded(model: PagedModel) -> NDArray[np.float32]:
    """The logits of tokens that are computed one by one, and those of a pair between them."""
    model.allocate_cache(3)
    model.infer(step(0, 30))
    rows = []
    for start, end in ((30, 31), (31, 32), (32, 33), (33, 35), (35, 36)):
        rows.append(as_float32(model.infer(step(start, end))).copy())
    return np.concatenate(rows)


def test_a_model_with_inputs_of_other_shapes_stays_as_it_is() -> None:
    ids = opset13.parameter([-1, -1], ov.Type.i64)
    ids.output(0).set_names({"input_ids"})
    model = ov.Model([opset13.result(ids)], [ids])
    assert not fix_shapes(model)
    assert model.input(0).get_partial_shape() == ov.PartialShape([-1, -1])


@pytest.mark.parametrize(
    ("weights_size", "available", "choice", "expected"),
    [
        (MAX_WEIGHTS_SIZE, 4 * MAX_WEIGHTS_SIZE, Precisions("", {}), True),
        (MAX_WEIGHTS_SIZE, 4 * MAX_WEIGHTS_SIZE - 8, Precisions("", {}), False),
        (MAX_WEIGHTS_SIZE, 4 * MAX_WEIGHTS_SIZE, Precisions("", {}, {}), False),
        (MAX_WEIGHTS_SIZE, 8 * MAX_WEIGHTS_SIZE, Precisions("", {}, {}), True),
        (MAX_WEIGHTS_SIZE + 1, 2**40, Precisions("", {}), False),
        (EXACT_WEIGHTS_SIZE, 2**40, Precisions("", {}), False),
        (2**28, 2**40, Precisions("", {}, is_batch_invariant=True), False),
    ],
)
def test_single_rows_are_computed_apart_where_weights_fit_twice(
    weights_size: int, available: int, choice: Precisions, expected: bool
) -> None:
    choice = with_single_rows(choice, weights_size=weights_size, available=available)
    assert choice.has_single_rows == expected


# Models that cannot be paged are refused with the reason.


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
        (lambda: stateless("inputs_embeds"), "it takes embeddings instead of tokens"),
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
def test_model_without_attention_is_not_tried_on_another_backend(
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


# Which models can be paged, and what is said of the others.


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", "RuntimeError"),
        ("out of luck", "out of luck"),
        ("Exception from a.cpp:3:\nCheck failed at b.cpp:4:\nno such thing\n\n", "no such thing"),
        ("Check 'a >= b' failed at /home/x/src/c.cpp:15\n", "Check 'a >= b' failed"),
    ],
)
def test_reason_of_an_openvino_error_leaves_out_the_trace(message: str, reason: str) -> None:
    assert reason_of(RuntimeError(message)) == reason


SLOPES = 11
"""The input of a paged attention that has its slopes."""


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
def test_exact_length_is_known_after_the_transformation_alone(
    name: str, expected: int | None
) -> None:
    graph = read_transformed(ov.Core(), MODELS / name / "openvino_model.xml", 160)
    exact = graph.max_exact_len
    assert (None if exact is None else exact.num_tokens) == expected


def test_missing_or_recurrent_graph_gives_an_empty_transformed_graph(tmp_path: Path) -> None:
    graph = tmp_path / "openvino_model.xml"
    assert read_transformed(ov.Core(), graph, 160) == TransformedGraph()
    ov.save_model(recurrent_model(), graph)
    assert read_transformed(ov.Core(), graph, 160) == TransformedGraph()


def test_state_beside_attention_is_noticed(tmp_path: Path) -> None:
    graph = tmp_path / "openvino_model.xml"
    ov.save_model(hybrid_model(), graph)
    assert read_transformed(ov.Core(), graph, 160) == TransformedGraph(has_other_state=True)


def with_shared_cache() -> ov.Model:
    """A model whose last layer takes keys and values of its first, as in Gemma 3n. The bias of the
    one between them grows with the position."""
    shape = replace(SHAPES["tiny"], num_hidden_layers=3)
    model = LlamaGraph(shape, 300, seed=0).build()
    nodes = model.get_ordered_ops()
    first, middle, last = (n for n in nodes if n.get_type_name() == "ScaledDotProductAttention")
    for index in (1, 2):
        last.input(index).replace_source_output(first.input_value(index))
    mask = middle.input_value(3)
    length = ops.gather(ops.shape_of(mask), np.int64(3), np.int64(0))
    keys = ops.convert(ops.range(np.int64(0), length, np.int64(1), "i64"), np.float32)
    middle.input(3).replace_source_output(ops.add(mask, keys).output(0))
    sinks = [sink for sink in model.get_sinks() if ".2." not in sink.get_variable_id()]
    return ov.Model(model.get_results(), sinks, model.get_parameters(), "model")


def test_layers_that_share_a_cache_keep_their_own_attention(tmp_path: Path) -> None:
    ov.save_model(with_shared_cache(), tmp_path / "openvino_model.xml")
    model = read_paged_graph(ov.Core(), tmp_path, 160).model
    found = [
        (node.input_value(3).get_any_name(), bool(node.input_value(SLOPES).get_shape()[0]))
        for node in model.get_ordered_ops()
        if node.get_type_name() == "PagedAttentionExtension"
    ]
    assert found == [("key_cache.0", False), ("key_cache.1", True), ("key_cache.0", False)]
