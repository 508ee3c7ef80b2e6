"""Tests of `fastovms/gguf/tensor_types.py`."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from bench.random_models.gguf_decoder import FIRST_SCALE, WITH_MINIMUM, random_rows
from fastovms.gguf.tensor_types import TENSOR_TYPES, TYPE_NAMES, TensorType

# Groups of integers and scales are the numbers that llama.cpp's own package reads.


QUANTIZED = {number: kind for number, kind in TENSOR_TYPES.items() if kind.bits}


def values(kind: TensorType, blocks: np.ndarray) -> np.ndarray:
    assert kind.unpack is not None
    groups = kind.unpack(blocks)
    offsets = 0 if groups.zero_points is None else groups.zero_points[..., None]
    numbers = (groups.integers.astype(np.float64) - offsets) * groups.scales[..., None]
    return numbers.reshape(len(blocks), -1)


@pytest.mark.parametrize("number", TENSOR_TYPES)
def test_tensor_types_have_the_sizes_of_the_gguf_package(number: int) -> None:
    kind = TENSOR_TYPES[number]
    assert Type(number).name == kind.name
    assert gguf.GGML_QUANT_SIZES[Type(number)] == (kind.block_size, kind.block_bytes)


def test_every_tensor_type_has_a_name() -> None:
    for kind in Type:
        assert TYPE_NAMES.get(kind) == kind.name or kind in TENSOR_TYPES or kind > max(TYPE_NAMES)


@pytest.mark.parametrize("number", QUANTIZED)
def test_quantized_rows_are_dequantized_as_by_the_gguf_package(number: int) -> None:
    kind = QUANTIZED[number]
    rng = np.random.default_rng(number)
    rows = random_rows(rng, 64, 2 * kind.block_size, Type(number), 0.1)
    expected = gguf.dequantize(rows, Type(number)).reshape(-1, kind.block_size)
    found = values(kind, rows.reshape(-1, kind.block_bytes))
    exact = Type(number) not in WITH_MINIMUM
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if exact else 1e-7)


@pytest.mark.parametrize("number", QUANTIZED)
def test_integers_fit_their_bits(number: int) -> None:
    kind = QUANTIZED[number]
    blocks = np.random.default_rng(0).integers(0, 256, (500, kind.block_bytes)).astype(np.uint8)
    start = FIRST_SCALE[Type(number)]
    blocks[:, start : start + 4] = np.array([1, 0.5], np.float16).view(np.uint8)[
        : blocks.shape[1] - start
    ]
    assert kind.unpack is not None
    integers = kind.unpack(blocks).integers
    signed = integers.dtype == np.int8
    assert integers.min() >= (-(2 ** (kind.bits - 1)) if signed else 0)
    assert integers.max() < 2 ** (kind.bits - signed)


@pytest.mark.parametrize("kind", WITH_MINIMUM, ids=lambda kind: kind.name)
def test_a_scale_of_zero_leaves_the_minimum(kind: Type) -> None:
    tensor_type = TENSOR_TYPES[kind]
    blocks = np.full((1, tensor_type.block_bytes), 0x11, np.uint8)
    start = FIRST_SCALE[kind]
    blocks[:, start : start + 4] = np.array([0, 0.5], np.float16).view(np.uint8)
    expected = gguf.dequantize(blocks, kind)
    assert expected.any()
    np.testing.assert_allclose(values(tensor_type, blocks), expected, rtol=1e-6)
