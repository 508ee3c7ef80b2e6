"""Devices as operators name them, and the GPU's rules, over fakes: no GPU is at hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fastovms.engine.model import devices
from fastovms.engine.model.devices import device_memory, find_device
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
