"""Devices as operators name them, and the GPU's rules, over fakes: no GPU is at hand."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from fastovms.engine.model.compilation import possible_precisions
from fastovms.engine.model.machine import devices
from fastovms.engine.model.machine.devices import device_memory, find_device, share_of_cpu
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


@pytest.mark.parametrize(
    ("num_usable", "expected"),
    [(4, {}), (1, {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False})],
)
def test_openvino_is_told_of_a_quota(
    monkeypatch: pytest.MonkeyPatch, num_usable: int, expected: dict[str, object]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert share_of_cpu(num_usable) == expected


@pytest.mark.parametrize("asked", [None, 2])
def test_openvino_computes_with_as_many_threads_as_the_quota_has_room_for(
    monkeypatch: pytest.MonkeyPatch, asked: int | None
) -> None:
    """OpenVINO's own answer, of a model with the properties of a quota of one processor."""
    monkeypatch.setattr(devices, "num_usable_cpus", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    given = {} if asked is None else {"INFERENCE_NUM_THREADS": asked}
    [precisions, *_] = possible_precisions(
        ov.Core(), "CPU", given, exact=True, weights_size=0, group_size=32, available=MIB
    )
    a = opset13.parameter([2], np.float32)
    model = ov.Model([opset13.relu(a)], [a])
    compiled = ov.Core().compile_model(model, "CPU", dict(precisions.large))
    assert compiled.get_property("INFERENCE_NUM_THREADS") == (asked or 1)
    assert compiled.get_property("ENABLE_CPU_PINNING") is False
