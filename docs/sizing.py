"""Computes the table of the page Which model: memory and speed by model and precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple


class Shape(NamedTuple):
    """The shape of a model, from its config.json.

    Attributes:
        num_experts: experts of each layer, of which `num_active` compute a token; 1 = none.
        tied: whether the last projection shares the embedding's matrix.
    """

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    num_experts: int = 1
    num_active: int = 1


SHAPES: Final[Mapping[str, Shape]] = {
    "Qwen3-0.6B": Shape(28, 1024, 3072, 16, 8, 128, 151_936, True),
    "Qwen3-1.7B": Shape(28, 2048, 6144, 16, 8, 128, 151_936, True),
    "Qwen3-4B": Shape(36, 2560, 9728, 32, 8, 128, 151_936, True),
    "Llama-3.1-8B": Shape(32, 4096, 14_336, 32, 8, 128, 128_256, False),
    "Qwen3-8B": Shape(36, 4096, 12_288, 32, 8, 128, 151_936, False),
    "Qwen3-14B": Shape(40, 5120, 17_408, 40, 8, 128, 151_936, False),
    "Qwen3-30B-A3B": Shape(48, 2048, 768, 32, 4, 128, 151_936, False, 128, 8),
}

BITS: Final[Mapping[str, float]] = {"int4": 4.0 + 16 / 128, "int8": 8.0}
"""Bits of a weight: int4 has a scale of 16 bits for each 128. Embedding and head have 8 bits."""

BANDWIDTHS: Final = (30, 60, 200)
"""Bytes that the memory gives, in GB/s."""

SHARE: Final = 0.6
"""The share of the bandwidth that decoding reads weights with."""

CONTEXT: Final = 8192
_FURTHER_GB: Final = 0.5
_GB: Final = 1e9


def _layer_weights(shape: Shape, num_experts: int) -> int:
    attention = shape.hidden * shape.head_size * 2 * (shape.num_heads + shape.num_kv_heads)
    return shape.num_layers * (attention + 3 * shape.hidden * shape.intermediate * num_experts)


def num_parameters(shape: Shape) -> int:
    """Returns the number of weights, norms and biases left out."""
    tables = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return _layer_weights(shape, shape.num_experts) + tables


def weights_bytes(shape: Shape, bits: float) -> float:
    """Returns the bytes of the weights in memory."""
    layers = _layer_weights(shape, shape.num_experts)
    return layers * bits / 8 + num_parameters(shape) - layers


def read_bytes(shape: Shape, bits: float) -> float:
    """Returns the bytes of weights that one token reads: all but the embedding and the experts that
    do not compute it."""
    head = shape.vocabulary * shape.hidden
    return _layer_weights(shape, shape.num_active) * bits / 8 + head


def cache_bytes(shape: Shape, num_tokens: int) -> int:
    """Returns the bytes of the keys and values of a text in f16."""
    return num_tokens * shape.num_layers * shape.num_kv_heads * shape.head_size * 2 * 2


def rows() -> Iterator[Sequence[str]]:
    """Yields the rows of the table."""
    for name, shape in SHAPES.items():
        cache = cache_bytes(shape, CONTEXT) / _GB
        for precision, bits in BITS.items():
            weights = weights_bytes(shape, bits) / _GB
            speeds = (
                f"{float(f'{bandwidth * SHARE * _GB / read_bytes(shape, bits):.2g}'):g}"
                for bandwidth in BANDWIDTHS
            )
            yield (
                name,
                precision,
                f"{weights:.1f}",
                f"{cache:.1f}",
                f"{weights + cache + _FURTHER_GB:.1f}",
                *speeds,
            )
