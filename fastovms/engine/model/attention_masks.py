"""Determines each layer's attention from the masks in an exported model's graph.

Masks are computed by the graph in many ways: sliding windows have several forms, and biases by
distance (ALiBi) are added. Masks are therefore not parsed but evaluated, for queries at some
positions. The result shows which keys each query attends to, and with which bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.engine.model.graph_walk import inputs_of, reached

Node = Any
Floats = NDArray[np.float32]

_ATTENTION: Final = "ScaledDotProductAttention"
_MASK_INPUT: Final = 3
_HIDDEN: Final = -1e4
"""Mask values below this hide a key: masks use -65504, the lowest float32, or minus infinity."""

_TOLERANCE: Final = 1e-3
"""The maximum deviation of biases from a linear slope, relative to the largest bias."""


class UnknownMask(Exception):
    """The masks cannot be evaluated."""


class LayerAttention(NamedTuple):
    """Which keys a layer's queries attend to, among the key at their own position and earlier ones.

    Attributes:
        window: the number of keys up to the query's own position; None = all.
        slopes: the increase of each head's bias from one key position to the next; None = no bias.
    """

    window: int | None = None
    slopes: tuple[float, ...] | None = None


class ModelAttention(NamedTuple):
    """The attention of all layers.

    Attributes:
        layers: the attention of each layer, in order.
        max_len: the context length up to which this is exact; None = any.
    """

    layers: tuple[LayerAttention, ...]
    max_len: int | None = None


def attentions_of(model: ov.Model, max_model_len: int) -> ModelAttention:
    """Returns the attention of a stateful model's layers, by evaluating its masks for sequences of
    up to `max_model_len` tokens. Raises UnknownMask if the masks depend on anything but sequence
    lengths."""
    operations = model.clone().get_ordered_ops()
    layers = [node for node in operations if node.get_type_name() == _ATTENTION]
    try:
        masks = _Masks(layers)
        return _describe(masks.row, len(layers), max_model_len)
    except RuntimeError as error:
        raise UnknownMask from error


Row = Callable[[int, int], Floats]
"""The mask of a layer for the query at a position: [heads or 1, position + 1]."""


def _describe(row: Row, num_layers: int, max_model_len: int) -> ModelAttention:
    """Derives the attention of all layers from mask rows."""
    last = max_model_len - 1
    layers: list[LayerAttention] = []
    max_len = None
    for layer in range(num_layers):
        attention = _attention_up_to(partial(row, layer), last)
        if attention is None:
            attention, length = _longest(partial(row, layer), last)
            max_len = min(length, max_len or length)
        layers.append(attention)
    return ModelAttention(tuple(layers), max_len)


def _attention_up_to(row: Callable[[int], Floats], last: int) -> LayerAttention | None:
    """Derives the attention from the mask row of the last position, and checks other rows against
    it; None = other rows do not match."""
    attention = _attention_of(row(last))
    if attention is None:
        return None
    positions = _distinguishing_positions(attention, last)
    return attention if all(_is_seen(row(each), attention) for each in positions) else None


def _attention_of(row: Floats) -> LayerAttention | None:
    """Returns the attention with this mask row; None = neither full attention nor a window."""
    visible = row > _HIDDEN
    num_visible = int(visible[0].sum())
    if num_visible == 0:
        return None
    window = None if num_visible == row.shape[1] else num_visible
    seen = row[:, row.shape[1] - num_visible :].astype(np.float64)
    attention = LayerAttention(window)
    if num_visible > 1 and np.ptp(seen):
        slopes = (seen[:, -1] - seen[:, 0]) / (num_visible - 1)
        attention = LayerAttention(window, tuple(map(float, slopes)))
    return attention if _is_seen(row, attention) else None


def _distinguishing_positions(attention: LayerAttention, last: int) -> list[int]:
    """Returns the query positions whose mask rows distinguish chunked, window and full
    attention."""
    window = attention.window or 0
    positions = {last - 1, last // 2, last - window // 2, window, window - 1, window // 2}
    return sorted(position for position in positions if 0 <= position < last)


def _is_seen(row: Floats, attention: LayerAttention) -> bool:
    """Returns whether a mask row matches an attention."""
    num_keys = row.shape[1]
    num_visible = min(num_keys, attention.window or num_keys)
    num_hidden = num_keys - num_visible
    visible = row > _HIDDEN
    if visible[:, :num_hidden].any() or not visible[:, num_hidden:].all():
        return False
    seen = row[:, num_hidden:].astype(np.float64)
    slopes = np.array(attention.slopes or (0.0,))
    expected = slopes[:, None] * (np.arange(num_visible) - num_visible + 1)
    scale = max(1.0, float(np.abs(seen).max()))
    return bool(np.allclose(seen - seen[:, -1:], expected, rtol=0, atol=_TOLERANCE * scale))


def _longest(row: Callable[[int], Floats], last: int) -> tuple[LayerAttention, int]:
    """Returns the attention that describes all queries of a sequence, for the longest possible
    sequence, and that length. For chunked attention it is the first chunk; for biases rounded to
    bf16 (Falcon's ALiBi) it is 256."""
    low, high, found = 0, last, LayerAttention()
    while high - low > 1:
        middle = (low + high) // 2
        attention = _attention_up_to(row, middle)
        if attention is None:
            high = middle
        else:
            low, found = middle, attention
    return found, low + 1


class _Masks:
    """The compiled part of a model that computes the masks."""

    def __init__(self, layers: Sequence[Node]) -> None:
        outputs: list[Any] = []
        self._output_of: list[int | None] = []
        places: dict[tuple[int, int], int] = {}
        for layer in layers:
            if layer.get_attributes().get("causal") or layer.get_input_size() <= _MASK_INPUT:
                self._output_of.append(None)
                continue
            mask = layer.input_value(_MASK_INPUT)
            key = mask.get_node().get_instance_id(), mask.get_index()
            if key not in places:
                places[key] = len(outputs)
                outputs.append(mask)
            self._output_of.append(places[key])
        # Calling the CompiledModel itself would make a reference cycle that keeps it, and the
        # model, in memory.
        self._request = _compile(outputs).create_infer_request() if outputs else None
        self._rows: dict[int, list[Floats]] = {}

    def row(self, layer: int, position: int) -> Floats:
        output = self._output_of[layer]
        if output is None:
            return np.zeros((1, position + 1), np.float32)
        if position not in self._rows:
            self._rows[position] = self._evaluate(position)
        return self._rows[position][output]

    def _evaluate(self, position: int) -> list[Floats]:
        assert self._request is not None
        outputs = self._request.infer(
            [
                _VALUES[_kind(port)](position, port.get_partial_shape())
                for port in self._request.model_inputs
            ]
        )
        return [_as_row(outputs[i], position) for i in range(len(outputs))]


def _as_row(mask: NDArray[Any], position: int) -> Floats:
    if mask.dtype == np.bool_:
        mask = np.where(mask, np.float32(0), np.float32(-np.inf))
    if mask.ndim == 0:
        return np.full((1, position + 1), mask, np.float32)
    heads = mask.shape[-3] if mask.ndim > 2 else 1
    if mask.shape[-1] != position + 1 or mask.size != heads * (position + 1):
        raise UnknownMask
    return mask.reshape(heads, -1).astype(np.float32)


_PAST: Final = "past"

_Value = Callable[[int, ov.PartialShape], NDArray[Any]]

_VALUES: Final[Mapping[str, _Value]] = {
    "input_ids": lambda position, shape: np.zeros((1, 1), np.int64),
    "inputs_embeds": lambda position, shape: np.zeros((1, 1, shape[2].get_length()), np.float32),
    "hidden_states": lambda position, shape: np.zeros((1, 1, shape[2].get_length()), np.float32),
    "attention_mask": lambda position, shape: np.ones((1, position + 1), np.int64),
    # Some vision models have positions of several dimensions.
    "position_ids": lambda position, shape: np.full(
        [d.get_length() if d.is_static else 1 for d in shape], position, np.int64
    ),
    "beam_idx": lambda position, shape: np.zeros(1, np.int32),
    _PAST: lambda position, shape: _empty_past(position, shape),
}
"""Functions that create each input for a batch of one query after `position` keys, by input
name."""


def _kind(port: Any) -> str:
    kind = str(port.get_any_name()).partition(".")[0]
    if kind not in _VALUES:
        raise UnknownMask
    return kind


def _empty_past(position: int, shape: ov.PartialShape) -> Floats:
    """Returns an empty array for a past state. Of the dynamic dimensions, the first is the batch
    size, and the second the sequence length."""
    lengths = iter((1, position))
    return np.zeros([d.get_length() if d.is_static else next(lengths) for d in shape], np.float32)


def _compile(outputs: Sequence[Any]) -> ov.CompiledModel:
    """Compiles the part of the graph on which the outputs depend, with inputs instead of state
    reads. Changes the original model."""
    parameters: list[Node] = []
    nodes = (output.get_node() for output in outputs)
    for node in reached(nodes, lambda node: [] if _reads_state(node) else inputs_of(node)):
        if _reads_state(node):
            past = opset13.parameter(node.get_output_partial_shape(0), np.float32, name=_PAST)
            past.output(0).set_names({f"{_PAST}.{len(parameters)}"})
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(past.output(0))
            parameters.append(past)
        elif node.get_type_name() == "Parameter":
            parameters.append(node)
    part = ov.Model([opset13.result(output) for output in outputs], parameters, "masks")
    return ov.Core().compile_model(part, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def _reads_state(node: Node) -> bool:
    return bool(node.get_type_name() == "ReadValue")
