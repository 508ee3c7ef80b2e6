"""Devices as operators name them, and the GPU's rules, over fakes: no GPU is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import pytest

from fastovms.engine.model import devices, kv_cache
from fastovms.engine.model.devices import device_memory, find_device
from fastovms.engine.model.kv_cache import CacheInput, HostCache, RemoteCache
from fastovms.errors import ConfigurationError

MIB = 1024**2


class FakeCore:
    def __init__(self, *available_devices: str, kind: str = "Type.DISCRETE") -> None:
        self.available_devices = list(available_devices)
        self._kind = kind

    def get_property(self, device: str, name: str) -> object:
        return {
            "GPU_DEVICE_TOTAL_MEM_SIZE": 1000 * MIB,
            "GPU_MEMORY_STATISTICS": {"usm_device": 300 * MIB, "usm_host": 100 * MIB},
            "DEVICE_TYPE": self._kind,
        }[name]


@pytest.mark.parametrize(
    ("name", "available", "expected"),
    [
        ("CPU", ["CPU"], "CPU"),
        ("cpu", ["CPU"], "CPU"),
        ("AUTO", ["CPU", "GPU"], "CPU"),
        ("GPU", ["CPU", "GPU"], "GPU"),
        ("gpu.1", ["CPU", "GPU.0", "GPU.1"], "GPU.1"),
        ("GPU", ["CPU", "GPU.0", "GPU.1"], "GPU"),
    ],
)
def test_a_device_is_found(name: str, available: Sequence[str], expected: str) -> None:
    assert find_device(FakeCore(*available), name) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "available", "message"),
    [
        ("GPU", ["CPU"], "there is no device GPU here, or no driver for it; there is CPU"),
        ("GPU.2", ["CPU", "GPU"], r"there is no device GPU\.2 here.* CPU, GPU"),
        ("NPU", ["CPU", "NPU"], r"--device must be CPU, GPU or GPU\.n, not 'NPU'"),
        ("HETERO:GPU,CPU", ["CPU"], "--device must be"),
        ("GPUS", ["CPU"], "--device must be"),
    ],
)
def test_a_device_that_cannot_be_had_is_named(
    name: str, available: Sequence[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_device(FakeCore(*available), name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "kind", "expected"),
    [
        ("CPU", "Type.INTEGRATED", 500 * MIB),
        ("GPU", "Type.DISCRETE", 600 * MIB),
        ("GPU.1", "Type.INTEGRATED", 500 * MIB),
    ],
)
def test_memory_is_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, kind: str, expected: int
) -> None:
    monkeypatch.setattr(devices, "available_memory", lambda: 500 * MIB)
    assert device_memory(FakeCore(kind=kind), device) == expected  # type: ignore[arg-type]


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
