"""OpenVINO's devices, and their memory."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import openvino as ov

from fastovms.errors import ConfigurationError
from fastovms.system.memory import memory_left, named_sizes, num_usable_cpus

logger = logging.getLogger(__name__)

GIB = 1024**3
MIB = 1024**2

FREE_MEMORY_SHARE = 0.5
"""The fraction of the free memory at startup for the KV cache. The rest is for activations, prompts
and other programs."""


MAX_MEMORY_SHARE = 0.9
"""The maximum fraction of the free memory for weights or KV caches."""


def available_memory(root: Path = Path("/"), *, with_swap: bool = False) -> int:
    """Returns the bytes of memory that this process can still allocate, within the limits of its
    container and its resource limits (ulimit -v)."""
    sizes = named_sizes(root / "proc/meminfo")
    free = sizes["MemAvailable"] + (sizes["SwapFree"] if with_swap else 0)
    return int(min(free, memory_left(root)))


def format_size(number: float) -> str:
    """Formats a number of bytes for messages, with a unit."""
    for unit in ("B", "KB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def num_cache_blocks(
    cache_size: float,
    *,
    bytes_per_block: int,
    extra_bytes: int = 0,
    max_useful_blocks: int,
    available: int,
) -> int:
    """Returns the number of KV blocks to reserve for `cache_size` GiB, limited to `available`
    bytes; 0 = a share of these. `extra_bytes` are subtracted: the cache needs them regardless of
    the number of blocks. Reserved memory costs nothing until it is used, but at most
    `max_useful_blocks` are reserved."""
    size = min(cache_size * GIB, available) if cache_size else available * FREE_MEMORY_SHARE
    return int(max(0, min((size - extra_bytes) / bytes_per_block, max_useful_blocks)))


def log_lack(cache_size: float, size: float) -> None:
    """Logs that a KV cache gets only `size` bytes instead of `cache_size` GiB."""
    logger.warning(
        "KV cache: --cache-size %g GiB does not fit into the free memory: the cache has %.3g GiB",
        cache_size,
        size / GIB,
    )


def share_memory(cache_sizes: Sequence[float], available: int, free: int) -> list[int]:
    """Returns the bytes for each KV cache. Caches of fixed size get their size, or together at most
    most of the free memory; caches of automatic size share what is left of `available`.

    Args:
        cache_sizes: the size of every cache in GiB; 0 = automatic.
        available: the bytes for all caches of automatic size.
        free: the bytes of free memory.
    """
    given = sum(size * GIB for size in cache_sizes)
    fits = min(1.0, MAX_MEMORY_SHARE * free / given) if given else 1.0
    num_automatic = max(1, sum(not size for size in cache_sizes))
    rest = int(max(0.0, available - given) / num_automatic)
    return [int(size * GIB * fits) if size else rest for size in cache_sizes]


_SOURCE = re.compile(r" at /\S+:\d+$")


def reason_of(error: BaseException) -> str:
    """Returns the line of an OpenVINO exception that states the error: the last line, after the
    trace, without build paths, and with C++'s names for a lack of memory replaced."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = _SOURCE.sub("", lines[-1]) if lines else type(error).__name__
    if "bad_alloc" in reason or "Failed to allocate" in reason or isinstance(error, MemoryError):
        return f"memory ends, or a limit of it (cgroup, ulimit -v): {reason}"
    return reason


class DeviceKind(Enum):
    """The kind of a device. The values are for messages."""

    CPU = "processor"
    DISCRETE = "discrete GPU"
    INTEGRATED = "integrated GPU"
    NPU = "NPU"
    OTHER = "device"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The properties of a device, as OpenVINO reports them.

    Attributes:
        name: OpenVINO's name of the device, such as "GPU.1".
        full_name: the product name; "" = unknown.
        memory: bytes of a GPU's or NPU's own memory; 0 = unknown, or it uses the host's.
        driver: the version of its driver; "" = unknown, or none is needed.
        fault: why it cannot be used; "" = usable.
    """

    name: str
    kind: DeviceKind
    full_name: str = ""
    memory: int = 0
    driver: str = ""
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.full_name})" if self.full_name else self.name


class DeviceChoice(NamedTuple):
    """A device, and why it was chosen; "" = the operator has named it."""

    name: str
    reason: str = ""


def read_devices(core: ov.Core) -> list[DeviceFacts]:
    """Returns OpenVINO's devices, in its order. A device whose properties cannot be read has a
    `fault`."""
    return [_read_device(core, name) for name in core.available_devices]


def _read_device(core: ov.Core, name: str) -> DeviceFacts:
    def read(key: str) -> Any:
        try:
            return core.get_property(name, key)
        except RuntimeError:  # the device does not have the property
            return None

    family = name.partition(".")[0]
    kind = {"CPU": DeviceKind.CPU, "NPU": DeviceKind.NPU}.get(family, DeviceKind.OTHER)
    if is_gpu(name):
        try:
            is_integrated = "INTEGRATED" in str(core.get_property(name, "DEVICE_TYPE")).upper()
        except RuntimeError as error:
            fault = " ".join(str(error).split()) or "it does not answer"
            return DeviceFacts(name, DeviceKind.OTHER, fault=fault)
        kind = DeviceKind.INTEGRATED if is_integrated else DeviceKind.DISCRETE
    return DeviceFacts(
        name,
        kind,
        str(read("FULL_DEVICE_NAME") or ""),
        int(read(f"{family}_DEVICE_TOTAL_MEM_SIZE") or 0) if kind is not DeviceKind.CPU else 0,
        str(read(f"{family}_DRIVER_VERSION") or "") if kind is not DeviceKind.CPU else "",
    )


def choose_device(devices: Sequence[DeviceFacts], needs_cpu: str = "") -> DeviceChoice:
    """Returns the device for `--device AUTO`: the discrete GPU with the most memory, otherwise an
    integrated GPU, otherwise the CPU. An NPU is never chosen.

    Args:
        needs_cpu: why only the CPU can be used; "" = any device can.
    """
    if needs_cpu:
        return DeviceChoice("CPU", needs_cpu)
    for kind in (DeviceKind.DISCRETE, DeviceKind.INTEGRATED):
        found = [device for device in devices if device.kind is kind]
        if not found:
            continue
        best = max(found, key=lambda device: device.memory)
        several = f", the one of {len(found)} with the most memory" if len(found) > 1 else ""
        article = "an" if kind is DeviceKind.INTEGRATED else "a"
        named = best.full_name or best.name
        return DeviceChoice(best.name, f"{named} is {article} {kind.value}{several}")
    broken = [f"{device.name} does not answer" for device in devices if device.fault]
    return DeviceChoice("CPU", ", ".join(broken) or "OpenVINO sees no GPU")


AUTO: Final = "AUTO"

_SEVERAL: Final = ("AUTO:", "HETERO", "MULTI", "BATCH")
"""Prefixes of OpenVINO's virtual devices, which combine other devices."""


def find_device(core: ov.Core, name: str, *, allows_npu: bool = False) -> str:
    """Returns OpenVINO's name of the device for a value of --device, such as "cpu" or "AUTO".
    Raises ConfigurationError if the device does not exist, or does not support paged attention.
    `allows_npu` is whether the caller can use an NPU, which has no paged attention."""
    device = name.upper()
    if device == AUTO:
        return choose_device(read_devices(core)).name
    if device.startswith(_SEVERAL):
        raise ConfigurationError(
            f"--device {name} is not supported: a model runs on one device, which AUTO chooses"
        )
    if is_npu(device) and not allows_npu:
        raise ConfigurationError(
            f"--device {name} needs the genai backend, because an NPU has no paged attention"
        )
    if is_cpu(device):
        return device
    if not is_gpu(device) and not is_npu(device):
        raise ConfigurationError(f"--device must be AUTO, CPU, GPU, GPU.n or NPU, not {name!r}")
    available = core.available_devices
    if device not in available and not (device == "GPU" and any(map(is_gpu, available))):
        raise ConfigurationError(
            f"the device {device} or its driver is not available; available are "
            + ", ".join(available)
        )
    return device


def is_cpu(device: str) -> bool:
    """Returns whether an OpenVINO device name is the CPU."""
    return device == "CPU"


def is_gpu(device: str) -> bool:
    """Returns whether an OpenVINO device name is a GPU, such as "GPU" or "GPU.1"."""
    return device == "GPU" or device.startswith("GPU.")


def is_npu(device: str) -> bool:
    """Returns whether an OpenVINO device name is an NPU, such as "NPU" or "NPU.0"."""
    return device == "NPU" or device.startswith("NPU.")


def share_of_cpu(num_cpus: int | None = None) -> dict[str, object]:
    """Returns OpenVINO's properties for a process that may use only part of the CPU; empty if it
    may use all.

    OpenVINO 2026.4 respects CPU affinity but not quotas: it starts a thread per core, which use up
    the quota early in every period (100 ms) and then stall. Threads are not pinned, because all
    containers of a machine would use the same cores. `num_cpus` is the number of usable CPUs; None
    = `num_usable_cpus`.
    """
    num_cpus = num_cpus or num_usable_cpus()
    if num_cpus >= len(os.sched_getaffinity(0)):
        return {}
    return {"INFERENCE_NUM_THREADS": num_cpus, "ENABLE_CPU_PINNING": False}


def device_memory(core: ov.Core, device: str) -> int:
    """Returns the free bytes of the memory that holds the KV cache. An integrated GPU uses the
    host's memory."""
    if not is_gpu(device):
        return available_memory()
    total = int(core.get_property(device, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    used: dict[str, Any] = core.get_property(device, "GPU_MEMORY_STATISTICS")
    free = max(0, total - sum(map(int, used.values())))
    is_integrated = "INTEGRATED" in str(core.get_property(device, "DEVICE_TYPE")).upper()
    return min(free, available_memory()) if is_integrated else free


_SIZE: Final = 128 * 1024 * 1024
"""Bytes to read: more than CPU caches hold, and few enough to take milliseconds."""


class MemoryReader:
    """Measures the memory bandwidth: each call reads a private memory area with all CPUs.

    As a context manager, it ends its threads; otherwise they end when it is garbage-collected.
    """

    def __init__(self, size: int = _SIZE, num_threads: int | None = None) -> None:
        num_threads = num_threads or num_usable_cpus()
        self._parts = np.array_split(np.ones(max(num_threads, size // 8), np.uint64), num_threads)
        self._threads = ThreadPoolExecutor(num_threads, "memory-reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def __call__(self) -> float:
        """Returns the bandwidth in bytes per second."""
        start = time.perf_counter()
        list(self._threads.map(np.sum, self._parts))
        return sum(part.nbytes for part in self._parts) / (time.perf_counter() - start)
