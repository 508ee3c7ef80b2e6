"""Rewrites a stateful OpenVINO language model for paged attention."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13
from openvino._offline_transformations import paged_attention_transformation

from fastovms.engine.model.graph.attention_masks import (
    LayerAttention,
    ModelAttention,
    UnknownMask,
    attentions_of,
)
from fastovms.engine.model.graph.counted_positions import use_own_positions
from fastovms.engine.model.graph.long_rope import scale_by_sequence
from fastovms.engine.model.graph.state_inputs import is_state_table, name_inputs
from fastovms.engine.model.graph.unsupported_graphs import (
    has_attention,
    why_not_paged,
    why_not_wholly_paged,
)
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.errors import ConfigurationError, UnsupportedModel

logger = logging.getLogger(__name__)

SAMPLED_TOKEN_INDICES = "sampled_token_indices"

_STEP_INPUTS = frozenset(StepInputs._fields)
_PAGED_ATTENTION = "PagedAttentionExtension"
_SLIDING_WINDOW_INPUT = 10
"""The input of a PagedAttentionExtension that has its sliding window; 0 = none."""

_ALIBI_SLOPES_INPUT = 11

DEFAULT_MAX_MODEL_LEN = 1024
"""The length in tokens of the text in which masks are looked at, where nobody says how long texts
may become."""

_MAX_MASK_LEN = 2**17

_LONGEST_TEXT = "its graph scales positions by the longest text of all that run"
_OTHER_MASK = "its attention hides or weighs tokens as paged attention does not"

_SOURCE = re.compile(r" at /\S+:\d+$")

_ELEMENTWISE = frozenset({"Add", "Convert", "Divide", "Multiply", "Subtract", "Tanh"})


class ExactLength(NamedTuple):
    num_tokens: int
    reason: str


class TransformedGraph(NamedTuple):
    """What is known of a model that is transformed to paged attention and nothing more.

    Attributes:
        max_exact_len: see `PagedGraph`.
        has_other_state: whether part of its state is not attention's.
    """

    max_exact_len: ExactLength | None = None
    has_other_state: bool = False


@dataclass(frozen=True, slots=True)
class PagedGraph:
    """A model whose inputs are those of `StepInputs`, a key and a value cache per layer of
    attention, and tables of its states.

    Attributes:
        weights: the file that its constants are in.
        rope_switch_len: see `Model`.
        has_rope_tables: whether positions of a text have to begin at 0 in the exported graph.
        max_exact_len: how many tokens texts may have for the graph to be exact, and why they may
            not have more; None = any number.
        has_states: whether it has states beside attention, in tables: see `state_rows`.
    """

    model: ov.Model
    weights: Path
    rope_switch_len: int | None
    max_exact_len: ExactLength | None
    has_rope_tables: bool = False
    has_states: bool = False


def read_paged_graph(
    core: ov.Core, model_dir: Path, max_model_len: int = DEFAULT_MAX_MODEL_LEN
) -> PagedGraph:
    """Reads `openvino_model.xml`. Only the tokens at `sampled_token_indices` are projected to the
    vocabulary, if the model has a place to put that input.

    The transformation recognises some forms of masks, and takes every other one for that of full
    attention. So what the masks say, in texts of up to `max_model_len` tokens, is set afterwards.

    Raises:
        ConfigurationError: the model is broken, or has no attention that anybody could page.
        UnsupportedModel: it is of another form that cannot be paged.
    """
    try:
        model = core.read_model(model_dir / "openvino_model.xml")
    except RuntimeError as error:
        raise ConfigurationError(
            f"cannot read the model in {model_dir}: {reason_of(error)}"
        ) from error
    reason = why_not_paged(model)
    refusal = UnsupportedModel if has_attention(model) else ConfigurationError
    attentions, has_states = None, False
    if reason is None:
        try:
            attentions = _read_masks(model, min(max_model_len, _MAX_MASK_LEN))
            _page(model)
            use_own_positions(model)
            has_states = name_inputs(model)
            reason = why_not_wholly_paged(model) or _why_not_fed(model)
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
    """Finds out what comes of a model that is transformed to paged attention and nothing more, as
    the genai pipeline does. Of one that cannot be transformed nothing is known.

    Args:
        graph: the model's file, or that of the language part of one that takes images.
    """
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
        layers = _layers(model)
        for layer, (window, slopes) in zip(layers, attentions.layers, strict=False):
            if slopes is not None and layer.input_value(_ALIBI_SLOPES_INPUT).get_shape() == [0]:
                limits.append(ExactLength(1, _OTHER_MASK))
            if window is not None and not _has_window(layer):
                limits.append(ExactLength(window, _OTHER_MASK))
    return TransformedGraph(min(limits, default=None), has_other_state)


def applies_sliding_window(model: ov.Model) -> bool:
    """Returns whether a layer of a paged model sees only the last tokens."""
    return any(map(_has_window, _layers(model)))


def _has_window(layer: Any) -> bool:
    window = layer.input_value(_SLIDING_WINDOW_INPUT).get_node()
    return window.get_type_name() != "Constant" or int(window.data.sum()) != 0


def is_cache(port: Any) -> bool:
    name = str(port.get_any_name())
    return name.startswith(("key_cache.", "value_cache.")) or is_state_table(name)


def reason_of(error: BaseException) -> str:
    """Returns the line of an OpenVINO message that says what is wrong: the last, below its trace.
    Where it was built is left out."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _SOURCE.sub("", lines[-1]) if lines else type(error).__name__


def _layers(model: ov.Model) -> list[Any]:
    """Returns the attention nodes, in the order of the layers: each depends on the one before it.
    Some layers share a cache (Gemma 3n)."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() == _PAGED_ATTENTION]


def _read_masks(model: ov.Model, max_model_len: int) -> ModelAttention | None:
    try:
        return attentions_of(model, max_model_len)
    except UnknownMask as error:
        logger.warning(
            "the masks of the attention cannot be read%s",
            "" if error.__cause__ is None else f": {reason_of(error.__cause__)}",
        )
        return None


def _set_attentions(model: ov.Model, attentions: Sequence[LayerAttention]) -> None:
    layers = _layers(model)
    if len(layers) != len(attentions):
        logger.info("%d layers of %d have been paged", len(layers), len(attentions))
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
    projection = _vocabulary_projection(model)
    if projection is None:
        logger.warning("no vocabulary projection found: every prompt token will pay for its logits")
        return
    indices = opset13.parameter([-1], ov.Type.i64, name=SAMPLED_TOKEN_INDICES)
    indices.output(0).set_names({SAMPLED_TOKEN_INDICES})
    hidden = opset13.gather(projection.input_value(0), indices, opset13.constant(0, dtype=np.int64))
    projection.input(0).replace_source_output(hidden.output(0))
    model.add_parameters([indices])
    model.validate_nodes_and_infer_types()


def _why_not_fed(model: ov.Model) -> str | None:
    names = {port.get_any_name() for port in model.inputs if not is_cache(port)}
    unknown = sorted(names - _STEP_INPUTS)
    if unknown:
        return "it needs inputs that a text has not got: " + ", ".join(unknown)
    return None


def _vocabulary_projection(model: ov.Model) -> Any | None:
    """Returns the last MatMul, which only elementwise operations (bias, scale, soft cap) may
    follow."""
    node = model.output("logits").get_node().input_value(0).get_node()
    while node.get_type_name() in _ELEMENTWISE:
        operands = [value.get_node() for value in node.input_values()]
        node = next((n for n in operands if n.get_type_name() != "Constant"), operands[0])
    return node if node.get_type_name() == "MatMul" else None
