"""Tests of `fastovms/engine/model/devices.py`."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from fastovms.engine.model import devices
from fastovms.engine.model.compilation import possible_precisions
from fastovms.engine.model.devices import (
    GIB,
    DeviceFacts,
    DeviceKind,
    MemoryReader,
    available_memory,
    choose_device,
    device_memory,
    find_device,
    num_cache_blocks,
    read_devices,
    share_memory,
    share_of_cpu,
)
from fastovms.errors import ConfigurationError
from tests.fake_cgroup import write_cgroup2


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        (None, None, 4 * GIB),
        ("max", "0", 4 * GIB),
        (str(2 * GIB), str(GIB), GIB),
        (str(64 * GIB), str(GIB), 4 * GIB),
        (str(GIB), str(2 * GIB), 0),
    ],
)
def test_available_memory_is_bounded_by_the_cgroup_limit(
    tmp_path: Path, limit: str | None, used: str | None, expected: int
) -> None:
    if limit is not None and used is not None:
        write_cgroup2(tmp_path, {"memory.max": limit, "memory.current": used})
    (tmp_path / "proc").mkdir(exist_ok=True)
    meminfo = f"MemTotal:  9 kB\nMemAvailable:  {4 * GIB // 1024} kB\nSwapFree:  1 kB\n"
    (tmp_path / "proc/meminfo").write_text(meminfo)
    assert available_memory(tmp_path) == expected
    swap = 1024 if expected == 4 * GIB else 0  # a limit exists also with swap
    assert available_memory(tmp_path, with_swap=True) == expected + swap


@pytest.mark.parametrize(
    ("cache_size", "available", "extra", "expected"),
    [
        (1, 2 * GIB, 0, 1024),
        (0.5, 2 * GIB, 0, 512),
        (4, 2 * GIB, 0, 2048),  # at most the free memory
        (0, 2 * GIB, 0, 1024),  # half of the free memory
        (0, 100 * GIB, 0, 5000),  # at most the usable memory
        (0.0001, GIB, 0, 0),
        (1e300, 100 * GIB, 0, 5000),
        (1, GIB, GIB // 4, 768),
    ],
)
def test_cache_has_the_blocks_that_are_asked_for_free_and_of_use(
    cache_size: float, available: int, extra: int, expected: int
) -> None:
    blocks = num_cache_blocks(
        cache_size,
        bytes_per_block=GIB // 1024,
        extra_bytes=extra,
        max_useful_blocks=5000,
        available=available,
    )
    assert blocks == expected


@pytest.mark.parametrize(
    ("cache_sizes", "expected"),
    [
        ([0.0], [8]),
        ([0.0, 0.0], [4, 4]),
        ([2.0, 0.0, 0.0], [2, 3, 3]),  # reserved memory is not available to others
        ([15.0, 0.0], [15, 0]),
        ([1.0], [1]),
        ([27.0, 9.0, 0.0], [13.5, 4.5, 0]),  # together nine tenths of the free memory
    ],
)
def test_caches_of_several_models_share_free_memory(
    cache_sizes: list[float], expected: list[float]
) -> None:
    shares = share_memory(cache_sizes, 8 * GIB, 20 * GIB)
    assert [share / GIB for share in shares] == expected


# Names of devices, and the GPU's rules, with fakes because there is no GPU.


MIB = 1024**2


class FakeCore:
    """Devices with their properties; `kind` is that of GPUs without given properties."""

    def __init__(
        self,
        *available_devices: str,
        kind: str = "Type.DISCRETE",
        properties: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self.available_devices = list(available_devices)
        self._kind = kind
        self._properties = properties or {}

    def get_property(self, device: str, name: str) -> object:
        known = {
            "GPU_DEVICE_TOTAL_MEM_SIZE": 1000 * MIB,
            "GPU_MEMORY_STATISTICS": {"usm_device": 300 * MIB, "usm_host": 100 * MIB},
            "DEVICE_TYPE": self._kind,
        }
        known |= self._properties.get(device, {})
        if name not in known or known[name] is None:
            raise RuntimeError(f"{device} has no {name}")
        return known[name]


ARC = {
    "FULL_DEVICE_NAME": "Intel Arc A770",
    "DEVICE_TYPE": "Type.DISCRETE",
    "GPU_DEVICE_TOTAL_MEM_SIZE": 16 * GIB,
    "GPU_DRIVER_VERSION": "25.1",
}
IRIS = {**ARC, "FULL_DEVICE_NAME": "Intel Iris Xe", "DEVICE_TYPE": "Type.INTEGRATED"}
SMALL = {**ARC, "FULL_DEVICE_NAME": "Intel Arc A380", "GPU_DEVICE_TOTAL_MEM_SIZE": 6 * GIB}
BROKEN = {"DEVICE_TYPE": None}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"CPU": {}}, ("CPU", "OpenVINO sees no GPU")),
        ({"CPU": {}, "GPU": IRIS}, ("GPU", "Intel Iris Xe is an integrated GPU")),
        ({"CPU": {}, "GPU.0": IRIS, "GPU.1": ARC}, ("GPU.1", "Intel Arc A770 is a discrete GPU")),
        (
            {"CPU": {}, "GPU.0": SMALL, "GPU.1": ARC},
            ("GPU.1", "Intel Arc A770 is a discrete GPU, the one of 2 with the most memory"),
        ),
        ({"CPU": {}, "NPU": {}}, ("CPU", "OpenVINO sees no GPU")),
        ({"CPU": {}, "GPU": BROKEN}, ("CPU", "GPU does not answer")),
        ({"CPU": {}, "GPU.0": BROKEN, "GPU.1": IRIS}, ("GPU.1", "Intel Iris Xe is an integ")),
    ],
)
def test_auto_device_is_the_best_gpu_that_answers_or_the_cpu(
    properties: dict[str, dict[str, object]], expected: tuple[str, str]
) -> None:
    core: Any = FakeCore(*properties, properties=properties)
    found = read_devices(core)
    assert [device.name for device in found] == list(properties)
    choice = choose_device(found)
    assert choice.name == expected[0] == find_device(core, "auto")
    assert choice.reason.startswith(expected[1])
    assert choose_device(found, "because") == ("CPU", "because")


def test_properties_of_a_device_are_read() -> None:
    npu = {"FULL_DEVICE_NAME": "Intel AI Boost", "NPU_DRIVER_VERSION": 32}
    cpu = {"FULL_DEVICE_NAME": "Xeon"}
    core: Any = FakeCore(
        "CPU",
        "GPU.0",
        "GPU.1",
        "NPU",
        properties={"CPU": cpu, "GPU.0": ARC, "NPU": npu} | {"GPU.1": BROKEN},
    )
    assert read_devices(core) == [
        DeviceFacts("CPU", DeviceKind.CPU, "Xeon"),
        DeviceFacts("GPU.0", DeviceKind.DISCRETE, "Intel Arc A770", 16 * GIB, "25.1"),
        DeviceFacts("GPU.1", DeviceKind.OTHER, fault="GPU.1 has no DEVICE_TYPE"),
        DeviceFacts("NPU", DeviceKind.NPU, "Intel AI Boost", driver="32"),
    ]


@pytest.mark.parametrize(
    ("name", "available", "expected"),
    [
        ("CPU", ["CPU"], "CPU"),
        ("cpu", ["CPU"], "CPU"),
        ("AUTO", ["CPU", "GPU"], "GPU"),
        ("gpu.1", ["CPU", "GPU.0", "GPU.1"], "GPU.1"),
        ("GPU", ["CPU", "GPU.0", "GPU.1"], "GPU"),
    ],
)
def test_device_is_found_by_its_name_in_any_case(
    name: str, available: Sequence[str], expected: str
) -> None:
    assert find_device(FakeCore(*available), name) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "available", "message"),
    [
        ("GPU", ["CPU"], "the device GPU or its driver is not available; available are CPU"),
        ("GPU.2", ["CPU", "GPU"], r"the device GPU\.2 or its driver.* CPU, GPU"),
        ("NPU", ["CPU", "NPU"], "--device NPU needs the genai backend"),
        (
            "HETERO:GPU,CPU",
            ["CPU"],
            "--device HETERO:GPU,CPU is not supported: a model runs on one",
        ),
        ("multi:CPU", ["CPU"], "--device multi:CPU is not supported: a model runs on one device"),
        ("AUTO:GPU,CPU", ["CPU"], "--device AUTO:GPU,CPU is not supported"),
        ("BATCH:CPU", ["CPU"], "--device BATCH:CPU is not supported"),
        ("GPUS", ["CPU"], "--device must be"),
    ],
)
def test_device_that_is_not_available_is_refused_by_name(
    name: str, available: Sequence[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_device(FakeCore(*available), name)  # type: ignore[arg-type]


def test_an_npu_is_for_those_who_can_use_it() -> None:
    core: Any = FakeCore("CPU", "NPU")
    assert find_device(core, "npu", allows_npu=True) == "NPU"
    with pytest.raises(ConfigurationError, match="the device NPU or its driver is not available"):
        find_device(FakeCore("CPU"), "NPU", allows_npu=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "kind", "expected"),
    [
        ("CPU", "Type.INTEGRATED", 500 * MIB),
        ("GPU", "Type.DISCRETE", 600 * MIB),
        ("GPU.1", "Type.INTEGRATED", 500 * MIB),
    ],
)
def test_device_memory_is_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, kind: str, expected: int
) -> None:
    monkeypatch.setattr(devices, "available_memory", lambda: 500 * MIB)
    assert device_memory(FakeCore(kind=kind), device) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_usable", "expected"),
    [(4, {}), (1, {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False})],
)
def test_cpu_quota_limits_the_threads_of_openvino(
    monkeypatch: pytest.MonkeyPatch, num_usable: int, expected: dict[str, object]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert share_of_cpu(num_usable) == expected


@pytest.mark.parametrize("asked", [None, 2])
def test_openvino_computes_with_as_many_threads_as_the_quota_has_room_for(
    monkeypatch: pytest.MonkeyPatch, asked: int | None
) -> None:
    """OpenVINO's own number for a model with the properties of a quota of one processor."""
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


def test_memory_is_read_at_some_speed_each_time() -> None:
    with MemoryReader(size=2**20, num_threads=2) as read:
        assert all(1e6 < read() < 1e14 for _ in range(3))
        assert "memory-reader" in _thread_names()
    assert "memory-reader" not in _thread_names()


def _thread_names() -> set[str]:
    return {thread.name.partition("_")[0] for thread in threading.enumerate()}
