"""Rewrites a model's graph for paged attention."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13
from openvino._offline_transformations import paged_attention_transformation

from fastovms.engine.model.attention_masks import (
    LayerAttention,
    ModelAttention,
    UnknownMask,
    attentions_of,
)
from fastovms.engine.model.devices import reason_of
from fastovms.engine.model.graph_walk import inputs_of, reached
from fastovms.engine.model.kv_cache import is_cache, is_state_table
from fastovms.engine.model.long_rope import scale_by_sequence
from fastovms.engine.model.model import ExactLength, PagedGraph
from fastovms.engine.model.step_inputs import HIDDEN_STATES, SAMPLED_TOKEN_INDICES, StepInputs
from fastovms.errors import ConfigurationError, UnsupportedModel

logger = logging.getLogger(__name__)


Node = Any


def use_own_positions(model: ov.Model) -> None:
    """Rewrites a paged model in place: positions that the graph itself counts, as a row [1, ...,
    tokens], are replaced by `position_ids`. Graphs of another form are not changed. In a paged
    graph each token is a batch item of one token, so all of them would get the position of the end
    of the longest sequence."""
    names = {name: port for port in model.inputs for name in port.get_names()}
    if "position_ids" not in names:
        return
    for row in filter(_is_row, model.get_ordered_ops()):
        shape = [1] * len(row.get_output_partial_shape(0))
        shape[-2] = -1
        column = opset13.reshape(
            names["position_ids"].get_node(), opset13.constant(np.array(shape)), False
        )
        row.output(0).replace(column.output(0))
    model.validate_nodes_and_infer_types()


def _is_row(node: Node) -> bool:
    if node.get_type_name() != "Reshape":
        return False
    counted = node.input_value(0).get_node()
    if counted.get_type_name() != "Range":
        return False
    # Positions that begin at a constant do not include the past length.
    if counted.input_value(0).get_node().get_type_name() == "Constant":
        return False
    *others, last = node.get_output_partial_shape(0)
    is_row = bool(others) and last.is_dynamic and all(d.is_static and d == 1 for d in others)
    return is_row and all(map(_is_repeated, node.output(0).get_target_inputs()))


def _is_repeated(target: Any) -> bool:
    node = target.get_node()
    return bool(node.get_type_name() == "Broadcast" and target.get_index() == 0)


_NAMES: Final = {
    "position_ids": "position_ids",
    "la.block_indices": "state_rows",
    "la.block_indices_begins": "state_row_begins",
    "la.cache_interval": "state_intervals",
}
"""The inputs' names in this package, by the names of OpenVINO's transformation. An input may have
several names."""

_PAST_LENS: Final = "past_lens"
_STATE_PAST_LENS: Final = "la.past_lens"


def name_inputs(model: ov.Model) -> bool:
    """Renames the inputs of a paged model in place, and returns whether it has recurrent states.
    OpenVINO's transformation creates tables for the states of convolutions (LFM 2), gated delta
    networks (Qwen 3 Next) and selective state spaces (Granite 4 hybrid); see
    `kv_cache.StateRows`."""
    inputs: dict[str, Any] = {name: port for port in model.inputs for name in port.get_names()}
    for found, name in _NAMES.items():
        if found in inputs:
            inputs[found].set_names({name})
    if _STATE_PAST_LENS in inputs:
        parameter = inputs[_STATE_PAST_LENS].get_node()
        for target in parameter.output(0).get_target_inputs():
            target.replace_source_output(inputs[_PAST_LENS].get_node().output(0))
        model.remove_parameter(parameter)
    return any(map(is_state_table, inputs))


MAX_ACTIVATION_GROUP: Final = 128
"""The maximum number of activations that share a scale."""

_INT4: Final = frozenset({ov.Type.i4, ov.Type.u4})
_INT8: Final = frozenset({ov.Type.i8, ov.Type.u8})
_DECOMPRESSION: Final = frozenset({"Convert", "Subtract", "Multiply", "Reshape"})


def activation_group_size(model: ov.Model) -> int:
    """Returns the number of activations that share a scale when they are quantized to 8 bits; 0 =
    they are not quantized. OpenVINO quantizes only for matrices whose group size is a multiple of
    this, so it is chosen by the group size of most weights.

    Matrices with non-integer zero points, as in k-quants, are not counted. Nor is the last matrix:
    if only it could be quantized, as in Q4_1, this would save no time, and cost half of the
    exactness (see bench/results/performance.md, Quality).
    """
    sizes: Counter[int] = Counter()
    last = {node.get_instance_id() for node in _last_products(model)}
    for product, group, num_weights in _groups(model, _INT4 | _INT8):
        if product.get_instance_id() not in last:
            sizes[math.gcd(group, MAX_ACTIVATION_GROUP)] += num_weights
    return max(sizes, key=lambda size: sizes[size], default=0)


def _last_products(model: ov.Model) -> Iterator[Node]:
    """Yields the matrix products on which no other product depends."""
    nodes = reached(model.get_results(), lambda node: [] if _is_product(node) else inputs_of(node))
    return filter(_is_product, nodes)


def _is_product(node: Node) -> bool:
    return bool(node.get_type_name() == "MatMul")


def int4_group_size(model: ov.Model) -> int | None:
    """Returns the number of 4-bit weights that share a scale in most matrices, at most
    `MAX_ACTIVATION_GROUP`; None = the model has no such weights."""
    sizes: Counter[int] = Counter()
    for _, group, num_weights in _groups(model, _INT4):
        sizes[group] += num_weights
    return max(sizes, key=lambda size: sizes[size], default=None)


def _groups(model: ov.Model, types: Set[ov.Type]) -> Iterator[tuple[Node, int, int]]:
    """Yields the product, the group size and the number of weights of each matrix. The group size
    is `MAX_ACTIVATION_GROUP` if whole rows share a scale. Matrices that cannot be multiplied as
    integers are left out."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() in types:
            found = _product_of(node, MAX_ACTIVATION_GROUP, node.shape[-1])
            if found is not None:
                yield *found, math.prod(node.shape)


def _product_of(weights: Node, group: int, width: int) -> tuple[Node, int] | None:
    """Returns the product with the matrix in a node, and the number of weights that share a scale;
    None = no product uses the node. Follows the nodes that decompress the weights.

    Args:
        group: the result's number, unless the weights are reshaped.
        width: the result's number after a reshape.
    """
    for target in weights.output(0).get_target_inputs():
        node = target.get_node()
        kind = node.get_type_name()
        if kind == "MatMul":
            return node, group
        if kind not in _DECOMPRESSION or target.get_index() != 0:
            continue
        if kind == "Subtract" and node.input_value(1).get_node().get_type_name() == "Constant":
            continue
        found = _product_of(node, width if kind == "Reshape" else group, width)
        if found is not None:
            return found
    return None


MAX_WEIGHTS_SIZE: Final = 512 * 1024 * 1024
"""The size of weights in bytes up to which the gain is clearly above 10 %."""

_SHAPES: Final = {
    "input_ids": [1],
    "position_ids": [1],
    "past_lens": [1],
    "subsequence_begins": [2],
    "block_indices_begins": [2],
    "sampled_token_indices": [1],
}


def fix_shapes(model: ov.Model) -> bool:
    """Rewrites a paged model in place for steps of one row only. Returns False if the model has
    other inputs, or nodes that do not support a single row; it must then not be used.

    With dynamic shapes OpenVINO infers the shapes of every node in every step, even if they are
    unchanged: 50 us a layer. Fixed shapes shorten a step: at context 192 to 0.78 of its time with
    135M parameters in int8 (30 layers), 0.90 with 0.5B in int8 (24), and 0.98 with 1.2B in int4
    (16). (Two cores of an EPYC, in bf16 as in f32.) The cost is a second copy of the weights in
    memory.
    """
    ports = {port.get_any_name(): port for port in model.inputs}
    shapes = {
        ports[name]: ov.PartialShape(shape) for name, shape in _SHAPES.items() if name in ports
    }
    if len(shapes) != len(_SHAPES) or any(
        not port.get_partial_shape().compatible(shape) for port, shape in shapes.items()
    ):
        return False
    try:
        model.reshape(shapes)
    except RuntimeError as error:
        logger.info("no separate graph is compiled for steps of one token: %s", error)
        return False
    return True


_EXPORT: Final = "optimum-cli export openvino --task text-generation-with-past"

_ENCODER: Final = "it is an encoder, such as an embedding model, which generates no text"

_ATTENTION: Final = "ScaledDotProductAttention"

_EMBEDDINGS: Final = frozenset({"last_hidden_state", "sentence_embedding", "token_embeddings"})
"""The outputs of embedding models."""

_Names = frozenset[str]

_FOREIGN: Final[tuple[tuple[Callable[[_Names], bool], str], ...]] = (
    (
        lambda names: "inputs_embeds" in names,
        "it takes embeddings instead of tokens, as the language part of a vision model does",
    ),
    (
        lambda names: bool(names & {"decoder_input_ids", "encoder_hidden_states"}),
        "it is part of an encoder-decoder model, which generates in another way",
    ),
    (
        lambda names: bool(names & {"pixel_values", "input_features", "input_values"}),
        "it takes images or sound instead of tokens",
    ),
    (
        lambda names: "token_type_ids" in names and "beam_idx" not in names,
        _ENCODER,
    ),
    (
        lambda names: any(name.startswith("past") for name in names),
        f"it was exported without state; export it again with {_EXPORT}",
    ),
    (lambda names: "input_ids" not in names, "it has no input named input_ids"),
)
"""Kinds of unsupported models, recognized by the names of their inputs and outputs."""


def why_not_paged(model: ov.Model) -> str | None:
    """Returns the reason why an exported model cannot be paged; None = it can."""
    names = _names(model.inputs)
    for is_foreign, reason in _FOREIGN:
        if is_foreign(names):
            return reason
    outputs = _names(model.outputs)
    if outputs & _EMBEDDINGS:
        return _ENCODER
    if "logits" not in outputs:
        return "it has no output named logits, so it does not generate text"
    if not model.get_sinks():
        return f"it was exported without state; export it again with {_EXPORT}"
    if not has_attention(model):
        if "Softmax" in _operations(model):
            return f"no attention of it was exported as OpenVINO's operation {_ATTENTION}"
        return "it has no attention, as recurrent models have none"
    return None


def has_attention(model: ov.Model) -> bool:
    """Returns whether a model has attention that either backend could page."""
    return _ATTENTION in _operations(model)


def _operations(model: ov.Model) -> set[str]:
    return {node.get_type_name() for node in model.get_ordered_ops()}


def why_not_wholly_paged(model: ov.Model) -> str | None:
    """Returns a description of the state inputs left after the transformation, which should have
    replaced all of them; None = none are left."""
    states = sorted(sink.get_variable_id() for sink in model.get_sinks())
    if not states:
        return None
    shown = ", ".join(states[:3]) + (", ..." if len(states) > 3 else "")
    return (
        "it is a recurrent or hybrid model, and OpenVINO makes no tables of that part of its state "
        f"which is not attention's ({shown}); if optimum-intel before 2.2 exported it, export it "
        "again with 2.2 or later"
    )


def _names(ports: list[ov.Output]) -> _Names:
    return frozenset(name for port in ports for name in port.get_names())


_STEP_INPUTS = frozenset(StepInputs._fields)
_PAGED_ATTENTION = "PagedAttentionExtension"
_SLIDING_WINDOW_INPUT = 10
"""The index of a PagedAttentionExtension's input for the sliding window; value 0 = none."""

_ALIBI_SLOPES_INPUT = 11

DEFAULT_MAX_MODEL_LEN = 1024
"""The sequence length in tokens for which masks are evaluated, if the context length is not
limited."""

_MAX_MASK_LEN = 2**17

_LONGEST_TEXT = "its graph scales positions by the longest text of all that run"
_OTHER_MASK = "its attention hides or weighs tokens as paged attention does not"

_ELEMENTWISE = frozenset({"Add", "Convert", "Divide", "Multiply", "Subtract", "Tanh"})


class TransformedGraph(NamedTuple):
    """Properties of a model after OpenVINO's transformation to paged attention only.

    Attributes:
        max_exact_len: see `PagedGraph`.
        has_other_state: whether part of its state does not belong to attention.
    """

    max_exact_len: ExactLength | None = None
    has_other_state: bool = False


def read_paged_graph(
    core: ov.Core, model_dir: Path, max_model_len: int = DEFAULT_MAX_MODEL_LEN
) -> PagedGraph:
    """Reads `openvino_model.xml`. Only the tokens at `sampled_token_indices` are projected to the
    vocabulary, if the graph allows that.

    The transformation recognizes some forms of masks and treats all others as full attention. The
    attention of each layer is therefore determined from the masks, for sequences of up to
    `max_model_len` tokens, and set afterwards. Raises ConfigurationError if the model is broken or
    has no attention that can be paged, and UnsupportedModel if its form cannot be paged.
    """
    try:
        model = core.read_model(model_dir / "openvino_model.xml")
    except RuntimeError as error:
        raise ConfigurationError(
            f"cannot read the model in {model_dir}: {reason_of(error)}"
        ) from error
    return page_graph(model, model_dir, max_model_len)


def page_graph(
    model: ov.Model, model_dir: Path, max_model_len: int, *, is_draft_head: bool = False
) -> PagedGraph:
    """Rewrites an exported graph in place; see `read_paged_graph`. A draft head may have hidden
    states as input."""
    reason = why_not_paged(model)
    refusal = UnsupportedModel if has_attention(model) else ConfigurationError
    attentions, has_states = None, False
    if reason is None:
        try:
            attentions = _read_masks(model, min(max_model_len, _MAX_MASK_LEN))
            _page(model)
            use_own_positions(model)
            has_states = name_inputs(model)
            fed = _STEP_INPUTS if is_draft_head else _STEP_INPUTS - {HIDDEN_STATES}
            reason = why_not_wholly_paged(model) or _why_not_fed(model, fed)
        except RuntimeError as error:
            reason = reason_of(error)
    if reason is not None:
        raise refusal(f"the model in {model_dir} cannot be served: {reason}")
    rope = scale_by_sequence(model)
    limits = []
    if rope.max_len is not None:
        limits.append(ExactLength(rope.max_len, _LONGEST_TEXT))
    if attentions is not None:
        _set_attentions(model, attentions.layers)
        if attentions.max_len is not None:
            limits.append(ExactLength(attentions.max_len, _OTHER_MASK))
    return PagedGraph(
        model,
        model_dir / "openvino_model.bin",
        rope.switch_len,
        min(limits, default=None),
        rope.has_tables,
        has_states,
    )


def read_transformed(core: ov.Core, graph: Path, max_model_len: int) -> TransformedGraph:
    """Returns properties of a model after OpenVINO's transformation to paged attention only, as the
    genai pipeline applies it; empty if it cannot be transformed. `graph` is the model's graph file,
    or that of a vision model's language part."""
    try:
        model = core.read_model(graph)
        attentions = _read_masks(model, min(max_model_len, _MAX_MASK_LEN))
        _transform(model)
    except RuntimeError:
        return TransformedGraph()
    has_other_state = name_inputs(model) or why_not_wholly_paged(model) is not None
    rope = scale_by_sequence(model)
    rope_len = rope.max_len or rope.switch_len
    limits = [] if rope_len is None else [ExactLength(rope_len, _LONGEST_TEXT)]
    if attentions is not None:
        if attentions.max_len is not None:
            limits.append(ExactLength(attentions.max_len, _OTHER_MASK))
        layers = attention_layers(model)
        for layer, (window, slopes) in zip(layers, attentions.layers, strict=False):
            if slopes is not None and layer.input_value(_ALIBI_SLOPES_INPUT).get_shape() == [0]:
                limits.append(ExactLength(1, _OTHER_MASK))
            if window is not None and not _has_window(layer):
                limits.append(ExactLength(window, _OTHER_MASK))
    return TransformedGraph(min(limits, default=None), has_other_state)


def applies_sliding_window(model: ov.Model) -> bool:
    """Returns whether any layer of a paged model has a sliding window."""
    return any(map(_has_window, attention_layers(model)))


def _has_window(layer: Any) -> bool:
    window = layer.input_value(_SLIDING_WINDOW_INPUT).get_node()
    return window.get_type_name() != "Constant" or int(window.data.sum()) != 0


def attention_windows(model: ov.Model) -> list[int]:
    """Returns the fixed sliding windows of a paged model's attention layers, in tokens."""
    nodes = [one.input_value(_SLIDING_WINDOW_INPUT).get_node() for one in attention_layers(model)]
    windows = [int(node.data.sum()) for node in nodes if node.get_type_name() == "Constant"]
    return [window for window in windows if window > 0]


def attention_layers(model: ov.Model) -> list[Any]:
    """Returns the attention nodes in the order of the layers: each depends on the previous one.
    Some layers share a cache (Gemma 3n)."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() == _PAGED_ATTENTION]


def _read_masks(model: ov.Model, max_model_len: int) -> ModelAttention | None:
    try:
        return attentions_of(model, max_model_len)
    except UnknownMask as error:
        logger.warning(
            "the attention masks of the model cannot be read%s",
            "" if error.__cause__ is None else f": {reason_of(error.__cause__)}",
        )
        return None


def _set_attentions(model: ov.Model, attentions: Sequence[LayerAttention]) -> None:
    layers = attention_layers(model)
    if len(layers) != len(attentions):
        logger.info("paged attention: %d of %d layers were converted", len(layers), len(attentions))
        return
    for layer, (window, slopes) in zip(layers, attentions, strict=True):
        window_input = opset13.constant(window or 0, np.int32)
        layer.input(_SLIDING_WINDOW_INPUT).replace_source_output(window_input.output(0))
        if slopes is not None:
            slopes_input = opset13.constant(np.array(slopes, np.float32))
            layer.input(_ALIBI_SLOPES_INPUT).replace_source_output(slopes_input.output(0))
    model.validate_nodes_and_infer_types()


def _transform(model: ov.Model) -> None:
    paged_attention_transformation(
        model,
        use_block_indices_inputs=False,
        use_score_outputs=False,
        allow_score_aggregation=False,
        allow_cache_rotation=False,
        allow_xattention=False,
        allow_adaptive_rkv=False,
        allow_qq_bias=False,
    )


def _page(model: ov.Model) -> None:
    _transform(model)
    _shape_rows(model)
    projection = vocabulary_projection(model)
    if projection is None:
        logger.warning(
            "no vocabulary projection found: logits are computed for every prompt token, which "
            "is slower"
        )
        return
    indices = opset13.parameter([-1], ov.Type.i64, name=SAMPLED_TOKEN_INDICES)
    indices.output(0).set_names({SAMPLED_TOKEN_INDICES})
    hidden = opset13.gather(projection.input_value(0), indices, opset13.constant(0, dtype=np.int64))
    projection.input(0).replace_source_output(hidden.output(0))
    model.add_parameters([indices])
    model.validate_nodes_and_infer_types()


def _shape_rows(model: ov.Model) -> None:
    """Gives matrix products with weights the row shape [tokens, 1, columns] where the export has
    them transposed, or computes their shape (LFM 2). Kernels and adapters support only this
    shape."""
    for node in model.get_ordered_ops():
        weights = node.input_value(1) if _is_product(node) else None
        if weights is None or weights.get_partial_shape().is_dynamic:
            continue
        attributes, shape = node.get_attributes(), node.get_input_partial_shape(0)
        if len(weights.get_shape()) != 2 or not attributes["transpose_b"] or len(shape) != 3:
            continue
        length = shape[2 if attributes["transpose_a"] else 1]
        if length != 1 or (not attributes["transpose_a"] and shape[2].is_static):
            continue
        rows = opset13.constant(np.array([-1, 1, weights.get_shape()[1]]))
        source = opset13.reshape(node.input_value(0), rows, False)
        product = opset13.matmul(source, weights, False, True)
        product.set_friendly_name(node.get_friendly_name())
        node.output(0).replace(product.output(0))
    model.validate_nodes_and_infer_types()


def _why_not_fed(model: ov.Model, fed: Set[str]) -> str | None:
    names = {port.get_any_name() for port in model.inputs if not is_cache(port)}
    unknown = sorted(names - fed)
    if unknown:
        return "it needs inputs that a text has not got: " + ", ".join(unknown)
    return None


def vocabulary_projection(model: ov.Model) -> Any | None:
    """Returns the last MatMul, if only elementwise operations (bias, scale, soft cap) follow it;
    None = not found."""
    node = model.output("logits").get_node().input_value(0).get_node()
    while node.get_type_name() in _ELEMENTWISE:
        operands = [value.get_node() for value in node.input_values()]
        node = next((n for n in operands if n.get_type_name() != "Constant"), operands[0])
    return node if node.get_type_name() == "MatMul" else None
