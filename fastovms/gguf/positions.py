"""Builds rotary position embeddings and attention masks."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from openvino import opset13

from fastovms.gguf.hyperparameters import Hyperparameters, RopeSettings
from fastovms.gguf.nodes import Node, constant, dimension
from fastovms.gguf.weights import Weights

Periods = NDArray[np.float32]

_FREQUENCY_FACTORS: Final = "rope_freqs.weight"
_LONG_FACTORS: Final = "rope_factors_long.weight"
_SHORT_FACTORS: Final = "rope_factors_short.weight"


class Rotation(NamedTuple):
    """The angles of rotary position embedding (RoPE): a position divided by `periods`.

    Attributes:
        periods: the number of positions for an angle of 1, for each pair of dimensions.
        long_periods: the periods of sequences longer than `original_context`, or None.
        magnitude: the factor of cosines and sines.
    """

    periods: Periods
    long_periods: Periods | None
    original_context: int
    magnitude: float


class CosSin(NamedTuple):
    """Cosines and sines, nodes [batch, 1, tokens, rotated dimensions]."""

    cos: Node
    sin: Node


def rotation_of(parameters: Hyperparameters, weights: Weights) -> Rotation:
    """Returns the RoPE parameters of the layers without a sliding window. Raises ConfigurationError
    if tensors with frequency factors are missing or have another shape. Computes in f64, as
    llama.cpp does (`ggml_rope_ext`)."""
    rope = parameters.rope
    size = rope.num_dimensions // 2
    periods = _unscaled(rope.base, rope.num_dimensions)
    if rope.scaling == "longrope" or _LONG_FACTORS in weights:
        short = periods * rope.factor * weights.floats(_SHORT_FACTORS, size)
        long = periods * rope.factor * weights.floats(_LONG_FACTORS, size)
        is_used = parameters.context_length > rope.original_context
        return Rotation(
            short.astype(np.float32),
            long.astype(np.float32) if is_used else None,
            rope.original_context,
            rope.attention_factor,
        )
    magnitude = rope.attention_factor
    if _FREQUENCY_FACTORS in weights:
        periods = periods * weights.floats(_FREQUENCY_FACTORS, size)
    if rope.scaling == "linear":
        periods = periods * rope.factor
    elif rope.scaling == "yarn":
        mix = _yarn_mix(rope)
        periods = 1 / ((1 - mix) / (periods * rope.factor) + mix / periods)
        if rope.extrapolation:
            magnitude *= 1 + 0.1 * math.log(rope.factor)
    return Rotation(periods.astype(np.float32), None, rope.original_context, magnitude)


def rotation_of_windows(parameters: Hyperparameters) -> Rotation | None:
    """Returns the RoPE parameters of layers with a sliding window; None = as in the other
    layers."""
    if parameters.window_rope_base is None:
        return None
    periods = _unscaled(parameters.window_rope_base, parameters.rope.num_dimensions)
    return Rotation(periods.astype(np.float32), None, parameters.context_length, 1.0)


def _unscaled(base: float, num_dimensions: int) -> NDArray[np.float64]:
    return np.asarray(base ** (np.arange(0, num_dimensions, 2, dtype=np.float64) / num_dimensions))


def _yarn_mix(rope: RopeSettings) -> NDArray[np.float64]:
    """Returns the weight of the unscaled frequency in each pair of dimensions, 0 to 1."""

    def dimension(num_rotations: float) -> float:
        """Returns the dimension whose frequency makes this number of rotations in the original
        context."""
        period = rope.original_context / (num_rotations * 2 * math.pi)
        return rope.num_dimensions * math.log(period) / (2 * math.log(rope.base))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.rounds_yarn:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0.0, low), min(rope.num_dimensions - 1.0, high)
    pairs = np.arange(rope.num_dimensions // 2, dtype=np.float64)
    ramp = np.clip((pairs - low) / max(0.001, high - low), 0, 1)
    return np.asarray((1 - ramp) * rope.extrapolation)


def cos_sin(rotation: Rotation, position_ids: Node) -> CosSin:
    """Returns cosines and sines of `position_ids` [batch, tokens] with each pair's value twice.

    If there are long periods, they are used when the highest position is beyond the original
    context, as in optimum-intel's exports.
    """
    frequencies = constant((1 / rotation.periods.astype(np.float64)).astype(np.float32))
    if rotation.long_periods is not None:
        frequencies = _by_length(rotation, rotation.long_periods, position_ids)
    column = opset13.unsqueeze(frequencies, constant(np.array([0, 2])))
    row = opset13.convert(opset13.unsqueeze(position_ids, constant(np.array(1))), "f32")
    angles = opset13.matmul(column, row, False, False)
    angles = opset13.transpose(angles, constant(np.array([0, 2, 1])))
    angles = opset13.concat([angles, angles], -1)
    return CosSin(_scaled(opset13.cos(angles), rotation), _scaled(opset13.sin(angles), rotation))


def _by_length(rotation: Rotation, long_periods: Periods, position_ids: Node) -> Node:
    last = opset13.reduce_max(position_ids, constant(np.array([0, 1])), False)
    length = opset13.add(last, constant(np.array(1)))
    is_long = opset13.greater(length, constant(np.array(rotation.original_context)))
    periods = opset13.select(is_long, constant(long_periods), constant(rotation.periods))
    return opset13.power(periods, constant(np.array([-1], np.float32)))


def _scaled(values: Node, rotation: Rotation) -> Node:
    if rotation.magnitude != 1:
        values = opset13.multiply(values, constant(np.full((1, 1, 1), rotation.magnitude, "f")))
    return opset13.unsqueeze(values, constant(np.array(1)))


def rotate(heads: Node, num_dimensions: int, head_size: int, angles: CosSin) -> Node:
    """Returns `heads` [batch, heads, tokens, head_size] with the first dimensions rotated."""
    if num_dimensions == head_size:
        return _rotate(heads, num_dimensions, angles)
    sizes = constant(np.array([num_dimensions, head_size - num_dimensions]))
    parts = opset13.variadic_split(heads, constant(np.array(-1)), sizes)
    return opset13.concat([_rotate(parts.output(0), num_dimensions, angles), parts.output(1)], -1)


def _rotate(heads: Any, num_dimensions: int, angles: CosSin) -> Node:
    half = num_dimensions // 2
    step, axis = constant(np.array([1])), constant(np.array([3]))
    start, middle, end = (constant(np.array([n])) for n in (0, half, num_dimensions))
    first = opset13.slice(heads, start, middle, step, axis)
    second = opset13.slice(heads, middle, end, step, axis)
    negated = opset13.multiply(second, constant(np.array(-1, np.float32)))
    turned = opset13.concat([negated, first], -1)
    return opset13.add(opset13.multiply(heads, angles.cos), opset13.multiply(turned, angles.sin))


class Masks(NamedTuple):
    """Attention masks, nodes [batch, 1, tokens, past tokens + tokens], to be added to scores. The
    windowed mask has the pattern of gpt-oss's exports, which OpenVINO's paged attention recognizes;
    it treats any other mask as full attention.

    Attributes:
        windowed: None if no layer has a window.
    """

    causal: Node
    windowed: Node | None


def build_masks(input_ids: Node, attention_mask: Node, window: int) -> Masks:
    """Returns the attention masks.

    Args:
        input_ids: [batch, tokens].
        attention_mask: [batch, past tokens + tokens], 0 where a token is masked.
        window: the size of the sliding window in tokens; 0 = no window.
    """
    total = _length(attention_mask)
    past = opset13.subtract(total, _length(input_ids))
    one, zero = constant(np.array(1)), constant(np.array(0))
    queries = opset13.unsqueeze(
        opset13.range(past, total, one, "i64"), constant(np.array([0, 1, 3]))
    )
    keys = opset13.unsqueeze(opset13.range(zero, total, one, "i64"), constant(np.array([0, 1, 2])))
    is_before = opset13.less_equal(keys, queries)
    is_given = opset13.unsqueeze(
        opset13.convert(attention_mask, "boolean"), constant(np.array([1, 2]))
    )
    causal = _as_scores(opset13.bitwise_and(is_before, is_given))
    if not window:
        return Masks(causal, None)
    anything = constant(np.array(True))
    oldest = opset13.add(queries, constant(np.array(-window)))
    is_near = opset13.bitwise_and(anything, opset13.greater(keys, oldest))
    is_seen = opset13.bitwise_and(is_near, is_before)
    is_seen = opset13.bitwise_and(opset13.bitwise_and(anything, is_seen), is_given)
    shape = opset13.concat(
        [
            dimension(input_ids, 0),
            constant(np.array([1])),
            dimension(input_ids, 1),
            dimension(attention_mask, 1),
        ],
        0,
    )
    scores = _as_scores(opset13.broadcast(is_seen, shape))
    bounds = [np.array([0]), None, np.array([1]), np.array([3])]
    whole = [dimension(attention_mask, 1) if each is None else constant(each) for each in bounds]
    return Masks(causal, opset13.slice(scores, *whole))


def _as_scores(is_seen: Node) -> Node:
    hidden = constant(np.array(np.finfo(np.float16).min, np.float32))
    return opset13.select(is_seen, constant(np.array(0, np.float32)), hidden)


def _length(node: Node) -> Node:
    return opset13.squeeze(dimension(node, 1), constant(np.array(0)))
