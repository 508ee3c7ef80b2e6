"""Judges the machine: each check takes the facts and yields what it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from fastovms.doctor.finding import Finding, Level
from fastovms.doctor.machine_facts import MachineFacts
from fastovms.engine.model.machine.device_memory import GIB

MachineCheck = Callable[[MachineFacts], Iterator[Finding]]

_INSTRUCTION_SETS: Final = {
    "AVX2": "avx2",
    "AVX-512": "avx512f",
    "AVX-VNNI": "avx_vnni",
    "AVX-512 VNNI": "avx512_vnni",
    "AVX-512 BF16": "avx512_bf16",
    "AMX BF16": "amx_bf16",
    "AMX INT8": "amx_int8",
}
"""Those that OpenVINO multiplies with, by their flags in /proc/cpuinfo."""

_LITTLE_MEMORY: Final = GIB


def check_instruction_sets(facts: MachineFacts) -> Iterator[Finding]:
    found = [name for name, flag in _INSTRUCTION_SETS.items() if flag in facts.flags]
    text = f"{facts.model}: {', '.join(found) or 'none of AVX2, AVX-512, VNNI and AMX'}"
    if "AVX2" not in found:
        yield Finding(
            Level.WARNING, "processor", text, "any Intel processor since 2013 is many times faster"
        )
    elif not any("VNNI" in name or "AMX" in name for name in found):
        yield Finding(
            Level.NOTE,
            "processor",
            f"{text}; without VNNI, weights of 8 and 4 bits save memory, and prompts are computed "
            "no faster for them",
        )
    else:
        yield Finding(Level.OK, "processor", text)


def check_cores(facts: MachineFacts) -> Iterator[Finding]:
    kinds = ", ".join(f"{number} {kind}" for kind, number in facts.kinds.items())
    text = f"{facts.num_cpus} logical processors{f' ({kinds})' if kinds else ''}"
    if facts.threads_per_core > 1:
        text += f", {facts.threads_per_core} to a core"
    yield Finding(Level.OK, "cores", f"{text}; the engine computes with {_threads(facts)}")
    if len(facts.kinds) > 1:
        yield Finding(
            Level.NOTE,
            "cores",
            "cores of several kinds share each step, which ends with the slowest",
            'compare with --plugin-config \'{"SCHEDULING_CORE_TYPE": "PCORE_ONLY"}\' by fastovms '
            "bench",
        )


def check_limits(facts: MachineFacts) -> Iterator[Finding]:
    if facts.num_allowed < facts.num_cpus:
        yield Finding(
            Level.NOTE,
            "limits",
            f"this process may run on {facts.num_allowed} of {facts.num_cpus} processors",
        )
    if math.isinf(facts.quota):
        return
    text = f"the control group allows {facts.quota:g} processors' time"
    if facts.quota != int(facts.quota):
        yield Finding(
            Level.WARNING,
            "limits",
            f"{text}, of which {_threads(facts)} use up the last part early and then stall",
            "a limit of whole processors",
        )
    elif facts.quota < facts.num_allowed:
        yield Finding(Level.NOTE, "limits", f"{text}; {_threads(facts)} compute, no more")
    else:
        yield Finding(Level.OK, "limits", text)


def check_memory(facts: MachineFacts) -> Iterator[Finding]:
    text = f"{facts.available_memory / GIB:.1f} GiB are free for weights and cache"
    if facts.memory_limit_left <= facts.available_memory:
        text += ", as far as the control group's limit goes"
    if facts.available_memory < _LITTLE_MEMORY:
        yield Finding(
            Level.WARNING, "memory", text, "end what else takes memory, or raise the limit"
        )
    else:
        yield Finding(Level.OK, "memory", text)


def check_load(facts: MachineFacts) -> Iterator[Finding]:
    if facts.load > facts.num_cpus:
        yield Finding(
            Level.NOTE,
            "load",
            f"{facts.load:.1f} tasks want {facts.num_cpus} processors at the moment: what is "
            "measured now is less than what can be had",
            "end what else runs here",
        )
    else:
        yield Finding(Level.OK, "load", f"{facts.load:.1f} tasks run at the moment")


def check_governor(facts: MachineFacts) -> Iterator[Finding]:
    slow = [name for name in facts.governors if name not in ("performance", "schedutil")]
    if slow:
        yield Finding(
            Level.WARNING,
            "governor",
            f"frequencies are governed by {', '.join(slow)}, which may keep them low",
            "cpupower frequency-set -g performance",
        )
    elif facts.governors:
        yield Finding(Level.OK, "governor", f"{', '.join(facts.governors)}")
    else:
        yield Finding(Level.OK, "governor", "none to be seen here; the host has it, if any")


def check_numa(facts: MachineFacts) -> Iterator[Finding]:
    if facts.num_numa_nodes > 1:
        yield Finding(
            Level.NOTE,
            "NUMA",
            f"memory lies in {facts.num_numa_nodes} nodes, and weights of one node are slow to "
            "read from another",
            "compare one server a node (numactl --cpunodebind=0 --membind=0, in a unit NUMAPolicy "
            "and NUMAMask) with one for all",
        )
    else:
        yield Finding(Level.OK, "NUMA", "all memory is in one node")


MACHINE_CHECKS: Final[tuple[MachineCheck, ...]] = (
    check_instruction_sets,
    check_cores,
    check_limits,
    check_memory,
    check_load,
    check_governor,
    check_numa,
)


def _threads(facts: MachineFacts) -> str:
    return "1 thread" if facts.num_threads == 1 else f"{facts.num_threads} threads"
