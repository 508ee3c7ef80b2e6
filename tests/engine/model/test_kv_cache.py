"""Blocks of keys and values, in the host's memory or in a GPU's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import pytest

from fastovms.engine.model import kv_cache
from fastovms.engine.model.kv_cache import CacheInput, HostCache, RemoteCache


class FakeRemoteTensor:
    """A region of an array, as `ov.RemoteTensor` is of the GPU's memory."""

    def __init__(self, base: Any, begin: Sequence[int], end: Sequence[int]) -> None:
        region = tuple(slice(b, e) for b, e in zip(begin, end, strict=True))
        self.data = base.data[region]

    def get_shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def copy_from(self, other: FakeRemoteTensor) -> None:
        self.data[...] = other.data


class FakeContext:
    def create_tensor(
        self, element_type: ov.Type, shape: ov.Shape, properties: dict[str, object]
    ) -> FakeRemoteTensor:
        class Base:
            data = np.arange(np.prod(list(shape)), dtype=np.float32).reshape(list(shape))

        return FakeRemoteTensor(Base, [0] * len(shape), list(shape))


INPUTS = [
    CacheInput("key_cache.0", ov.Type.f32, (2, 8, 16)),
    CacheInput("value_cache.0", ov.Type.f32, (2, 16, 8)),
]


@pytest.mark.parametrize("place", ["host", "GPU"])
def test_a_block_is_copied_whole_and_alone(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(kv_cache.ov, "RemoteTensor", FakeRemoteTensor)
    monkeypatch.setattr(kv_cache.ov, "Coordinate", list)
    cache = HostCache(INPUTS, 4) if place == "host" else RemoteCache(INPUTS, 4, FakeContext())
    assert list(cache.tensors) == ["key_cache.0", "value_cache.0"]
    for tensor in cache.tensors.values():
        tensor.data[...] = np.arange(tensor.data.size).reshape(tensor.data.shape)
    before = {name: tensor.data.copy() for name, tensor in cache.tensors.items()}
    cache.copy_block(1, 3)
    for name, tensor in cache.tensors.items():
        np.testing.assert_array_equal(tensor.data[3], before[name][1])
        np.testing.assert_array_equal(tensor.data[:3], before[name][:3])


def test_the_size_of_a_block_counts_bits() -> None:
    assert CacheInput("key_cache.0", ov.Type.u4, (2, 8, 16)).bytes_per_block == 128
    assert CacheInput("key_cache.0", ov.Type.f16, (2, 8, 16)).bytes_per_block == 512
