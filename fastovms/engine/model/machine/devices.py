"""Finds the devices that run models, and the memory that they have."""

from __future__ import annotations

import os
from typing import Any

import openvino as ov

from fastovms.engine.model.machine.device_memory import available_memory
from fastovms.errors import ConfigurationError
from fastovms.system.cgroup import num_usable_cpus


def find_device(core: ov.Core, name: str) -> str:
    """Returns OpenVINO's name of the device that an operator means: "cpu" and "AUTO" are the CPU.

    Raises:
        ConfigurationError: paged attention does not run there, or there is no such device.
    """
    device = name.upper()
    if device in ("CPU", "AUTO"):
        return "CPU"
    if not is_gpu(device):
        raise ConfigurationError(f"--device must be CPU, GPU or GPU.n, not {name!r}")
    available = core.available_devices
    if device not in available and not (device == "GPU" and any(map(is_gpu, available))):
        raise ConfigurationError(
            f"there is no device {device} here, or no driver for it; there is "
            + ", ".join(available)
        )
    return device


def is_cpu(device: str) -> bool:
    return device == "CPU"


def is_gpu(device: str) -> bool:
    return device == "GPU" or device.startswith("GPU.")


def share_of_cpu(num_cpus: int | None = None) -> dict[str, object]:
    """Returns OpenVINO's properties for a CPU of which this process may take less than it sees;
    none where it may take all.

    OpenVINO 2026.4 heeds affinity, but no quota: it starts a thread for each core, which use the
    quota up early in every period (100 ms) and then stall together. Threads are not pinned,
    because the containers of one machine would all pin theirs to its first cores.

    Args:
        num_cpus: how many may compute at once; None = as `num_usable_cpus` says.
    """
    num_cpus = num_cpus or num_usable_cpus()
    if num_cpus >= len(os.sched_getaffinity(0)):
        return {}
    return {"INFERENCE_NUM_THREADS": num_cpus, "ENABLE_CPU_PINNING": False}


def device_memory(core: ov.Core, device: str) -> int:
    """Returns the free bytes where the KV cache will lie. An integrated GPU takes the host's."""
    if not is_gpu(device):
        return available_memory()
    total = int(core.get_property(device, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    used: dict[str, Any] = core.get_property(device, "GPU_MEMORY_STATISTICS")
    free = max(0, total - sum(map(int, used.values())))
    is_integrated = "INTEGRATED" in str(core.get_property(device, "DEVICE_TYPE")).upper()
    return min(free, available_memory()) if is_integrated else free
