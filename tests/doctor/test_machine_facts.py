from __future__ import annotations

import math
from pathlib import Path

from fastovms.doctor.machine_facts import read_machine
from tests.fake_cgroup import write_cgroup2

CPUINFO = """processor\t: 0
model name\t: Intel(R) Core(TM) Ultra 7
flags\t\t: fpu avx2 avx_vnni

processor\t: 1
model name\t: another
flags\t\t: fpu
"""


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_a_hybrid_laptop(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemAvailable: 8388608 kB",
        "proc/loadavg": "1.25 0.50 0.25 3/400 999",
        "sys/devices/cpu_core/cpus": "0-11",
        "sys/devices/cpu_atom/cpus": "12-19,21",
        "sys/devices/system/cpu/online": "0-21",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0-1",
        "sys/devices/system/cpu/cpu0/cache/index2/size": "2048K",
        "sys/devices/system/cpu/cpu0/cache/index3/size": "24M",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave",
        "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance",
        "sys/devices/system/cpu/cpufreq/policy2/scaling_governor": "powersave",
        "sys/devices/system/node/has_memory": "0-1",
    }
    write(tmp_path, **files)
    limits = {"cpu.max": "150000 100000", "memory.max": "3000", "memory.current": "1000"}
    write_cgroup2(tmp_path, limits)
    facts = read_machine(tmp_path)
    assert facts.model == "Intel(R) Core(TM) Ultra 7"
    assert facts.flags == {"fpu", "avx2", "avx_vnni"}
    assert facts.num_cpus == 22
    assert facts.kinds == {"performance": 12, "efficiency": 9}
    assert facts.threads_per_core == 2
    assert facts.governors == {"powersave": 2, "performance": 1}
    assert facts.num_numa_nodes == 2
    assert facts.last_level_cache == 24 * 1024**2
    assert facts.quota == 1.5
    assert facts.load == 1.25
    assert facts.num_threads <= 2
    assert facts.available_memory == facts.memory_limit_left == 2000


def test_a_kernel_that_tells_little(tmp_path: Path) -> None:
    write(tmp_path, **{"proc/meminfo": "MemAvailable: 1 kB"})
    facts = read_machine(tmp_path)
    assert facts.model == "an unknown processor"
    assert facts.flags == frozenset()
    assert facts.num_cpus >= 1
    assert facts.kinds == facts.governors == {}
    assert facts.threads_per_core == facts.last_level_cache == 0
    assert facts.num_numa_nodes == 1
    assert math.isinf(facts.quota)


def test_this_machine() -> None:
    facts = read_machine()
    assert "sse2" in facts.flags or not facts.flags
    assert 1 <= facts.num_threads <= facts.num_allowed <= facts.num_cpus
    assert facts.available_memory > 0
