"""Builds rotary embeddings: which frequencies a file asks for, and cosines and sines of positions.

They are computed as llama.cpp does (`ggml_rope_ext`), in f64 until they are constants.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from openvino import opset13

from fastovms.gguf.hyperparameters import Hyperparameters, RopeSettings
from fastovms.gguf.weights import Weights, constant

Node = Any
Periods = NDArray[np.float32]

_FREQUENCY_FACTORS: Final = "rope_freqs.weight"
_LONG_FACTORS: Final = "rope_factors_long.weight"
_SHORT_FACTORS: Final = "rope_factors_short.weight"


class Rotation(NamedTuple):
    """Angles by position: a position divided by `periods`.

    Attributes:
        periods: tokens for an angle of 1, one for each pair of dimensions.
        long_periods: those of sequences that are longer than `original_context`, or None.
        magnitude: what cosines and sines are multiplied by.
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
    """Returns how a model's layers without a window rotate.

    Raises:
        ConfigurationError: tensors with factors are missing or of another shape.
    """
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
    """Returns how layers with a window rotate, or None: as the others do."""
    if parameters.window_rope_base is None:
        return None
    periods = _unscaled(parameters.window_rope_base, parameters.rope.num_dimensions)
    return Rotation(periods.astype(np.float32), None, parameters.context_length, 1.0)


def _unscaled(base: float, num_dimensions: int) -> NDArray[np.float64]:
    return np.asarray(base ** (np.arange(0, num_dimensions, 2, dtype=np.float64) / num_dimensions))


def _yarn_mix(rope: RopeSettings) -> NDArray[np.float64]:
    """Returns how much of the unscaled frequency each pair of dimensions has."""

    def dimension(num_rotations: float) -> float:
        """Returns the dimension whose frequency makes so many rotations in the original context."""
        period = rope.original_context / (num_rotations * 2 * math.pi)
        return rope.num_dimensions * math.log(period) / (2 * math.log(rope.base))

    low = max(0.0, math.floor(dimension(rope.beta_fast)))
    high = min(rope.num_dimensions - 1.0, math.ceil(dimension(rope.beta_slow)))
    pairs = np.arange(rope.num_dimensions // 2, dtype=np.float64)
    ramp = np.clip((pairs - low) / max(0.001, high - low), 0, 1)
    return np.asarray((1 - ramp) * rope.extrapolation)


def cos_sin(rotation: Rotation, position_ids: Node) -> CosSin:
    """Returns cosines and sines of `position_ids` [batch, tokens], each pair's twice.

    Where there are long periods, the highest position decides, as in what optimum-intel exports.
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
