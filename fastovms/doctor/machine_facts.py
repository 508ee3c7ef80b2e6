"""Reads what Linux tells of the machine, and of this process's share of it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastovms.engine.model.machine.device_memory import available_memory
from fastovms.system.cgroup import cpu_quota, memory_left, num_usable_cpus

_KIND_FILES: Final = {
    "performance": "sys/devices/cpu_core/cpus",
    "efficiency": "sys/devices/cpu_atom/cpus",
    "low-power efficiency": "sys/devices/cpu_lowpower/cpus",
}
"""Where the kernel lists the cores of each kind of a hybrid Intel processor."""

_SIZE: Final = re.compile(r"(\d+)([KMG]?)")
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What there is to compute with. Sizes in bytes.

    Attributes:
        flags: of the processor, as /proc/cpuinfo has them.
        num_cpus: logical processors that are online.
        num_allowed: of these, those on which this process may run.
        num_threads: how many the engine computes with.
        quota: processors' time that the control groups allow; infinite = no limit.
        threads_per_core: logical processors of a core; 0 = not known.
        kinds: logical processors by kind of core; empty = all are of one kind.
        governors: logical processors by the governor of their frequency; empty = there is none to
            be seen, as in most virtual machines.
        num_numa_nodes: with memory of their own.
        last_level_cache: of one processor; 0 = not known.
        available_memory: that this process may still take.
        memory_limit_left: what the control groups leave of it; infinite = no limit.
        load: tasks that ran or waited to run, on average over the last minute.
    """

    model: str
    flags: frozenset[str]
    num_cpus: int
    num_allowed: int
    num_threads: int
    quota: float
    threads_per_core: int
    kinds: Mapping[str, int]
    governors: Mapping[str, int]
    num_numa_nodes: int
    last_level_cache: int
    available_memory: int
    memory_limit_left: float
    load: float


def read_machine(root: Path = Path("/")) -> MachineFacts:
    """Reads the files of the kernel below `root`."""
    cpuinfo = _text(root / "proc/cpuinfo")
    cpus = root / "sys/devices/system/cpu"
    governors = [_text(file) for file in cpus.glob("cpufreq/policy*/scaling_governor")]
    kinds = {kind: len(_numbers(_text(root / file))) for kind, file in _KIND_FILES.items()}
    return MachineFacts(
        model=_field(cpuinfo, "model name") or "an unknown processor",
        flags=frozenset(_field(cpuinfo, "flags").split()),
        num_cpus=len(_numbers(_text(cpus / "online"))) or os.cpu_count() or 1,
        num_allowed=len(os.sched_getaffinity(0)),
        num_threads=num_usable_cpus(root),
        quota=cpu_quota(root),
        threads_per_core=len(_numbers(_text(cpus / "cpu0/topology/thread_siblings_list"))),
        kinds={kind: number for kind, number in kinds.items() if number},
        governors=dict(Counter(filter(None, governors))),
        num_numa_nodes=len(_numbers(_text(root / "sys/devices/system/node/has_memory"))) or 1,
        last_level_cache=max(map(_size, cpus.glob("cpu0/cache/index*/size")), default=0),
        available_memory=available_memory(root),
        memory_limit_left=memory_left(root),
        load=float((_text(root / "proc/loadavg").split() or ["0"])[0]),
    )


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # this kernel does not tell
        return ""


def _field(cpuinfo: str, name: str) -> str:
    """Returns a field of the first processor in /proc/cpuinfo; "" = it has none."""
    found = re.search(rf"^{name}\s*: (.*)$", cpuinfo, re.MULTILINE)
    return found[1] if found else ""


def _numbers(text: str) -> set[int]:
    """Reads a list of numbers as the kernel writes it, such as "0-3,8"."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _size(file: Path) -> int:
    found = _SIZE.fullmatch(_text(file))
    return int(found[1]) * _UNITS[found[2]] if found else 0
