"""Tests of `fastovms/system/memory.py`."""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from fastovms.app import loading
from fastovms.server_config import DEMO_MODEL, MediaConfig, ModelConfig
from fastovms.system import memory
from fastovms.system.memory import (
    child_memory,
    cpu_quota,
    find_trim,
    forget_mapped,
    memory_left,
    memory_limit,
    num_usable_cpus,
)
from fastovms.text.tokenizer import Tokenizer
from tests.fake_cgroup import write_cgroup2, write_files, write_membership

GIB = 1024**3
KEPT = 384 * 1024**2
QUOTA_V1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}
MEMORY_V1 = {
    "memory.limit_in_bytes": str(4 * GIB),
    "memory.usage_in_bytes": str(3 * GIB),
    "memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, math.inf),
        ({"cpu.max": "max 100000"}, math.inf),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "25000 50000"}, 0.5),
    ],
)
def test_cpu_quota_is_read_from_cgroup_version_2(
    tmp_path: Path, files: Mapping[str, str], expected: float
) -> None:
    write_cgroup2(tmp_path, files)
    assert cpu_quota(tmp_path) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, math.inf),
        ({"memory.max": "max", "memory.current": "1"}, math.inf),
        ({"memory.max": str(2 * GIB), "memory.current": str(GIB)}, GIB),
        ({"memory.max": str(GIB), "memory.current": str(2 * GIB)}, 0),
        (
            {
                "memory.max": str(4 * GIB),
                "memory.current": str(4 * GIB),
                "memory.stat": f"anon 7\ninactive_file {3 * GIB}\nactive_file 9",
            },
            3 * GIB,
        ),
    ],
    ids=["no cgroup", "no limit", "room", "beyond the limit", "a model's file was read"],
)
def test_memory_left_is_read_from_cgroup_version_2(
    tmp_path: Path, files: Mapping[str, str], expected: float
) -> None:
    write_cgroup2(tmp_path, files)
    assert memory_left(tmp_path) == expected


LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max data size             {}           unlimited            bytes
Max address space         {}           unlimited            bytes
Max open files            20000                20000                files
"""


@pytest.mark.parametrize(
    ("data", "space", "expected"),
    [
        ("unlimited", "unlimited", math.inf),
        ("unlimited", str(4 * GIB), 3 * GIB - KEPT),
        (str(4 * GIB), str(8 * GIB), 2 * GIB - KEPT),
        ("unlimited", str(GIB), 0),
    ],
)
def test_resource_limits_count_as_limits_of_memory(
    tmp_path: Path, data: str, space: str, expected: float
) -> None:
    sizes = f"VmSize: {GIB // 1024} kB\nVmData: {2 * GIB // 1024} kB\nThreads: 1"
    write_files(tmp_path / "proc/self", {"limits": LIMITS.format(data, space), "status": sizes})
    assert memory_left(tmp_path) == expected
    write_files(tmp_path / "proc", {"meminfo": f"MemTotal: {6 * GIB // 1024} kB"})
    limits = [int(limit) for limit in (data, space) if limit != "unlimited"]
    assert memory_limit(tmp_path) == min([6 * GIB, *limits])


def test_the_memory_of_child_processes_and_of_theirs(tmp_path: Path) -> None:
    for pid, children, resident in (
        ("self", "7 8", 1),
        ("7", "9", 10),
        ("8", "10", 20),
        ("9", "", 5),
    ):
        write_files(tmp_path / "proc" / pid, {"status": f"VmRSS:  {resident} kB"})
        write_files(tmp_path / "proc" / pid / "task" / "1", {"children": children})
    assert sorted(child_memory(tmp_path)) == [5 * 1024, 10 * 1024, 20 * 1024]  # 10 has ended


def test_the_tightest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    write_cgroup2(tmp_path, {"cpu.max": "100000 100000"}, "/machine.slice")
    write_cgroup2(tmp_path, {"cpu.max": "400000 100000"}, "/machine.slice/a.service")
    assert cpu_quota(tmp_path) == 1


@pytest.mark.parametrize(
    ("path", "mounted"),
    [
        ("/", "/"),
        ("/kubepods/pod1/c2", "/kubepods/pod1/c2"),  # a container sees its own group mounted
        ("/../../pod1/c2", "/"),  # and may be told a path outside of what it sees
        ("/kubepods/pod10", "/kubepods/pod1"),
    ],
)
def test_limits_are_read_from_cgroup_version_1_in_a_container(
    tmp_path: Path, path: str, mounted: str
) -> None:
    write_membership(
        tmp_path,
        f"9:name=systemd:/x\n4:memory:{path}\n2:cpu,cpuacct:{path}\n0::/",
        f"""\
32 31 0:29 {mounted} /sys/fs/cgroup/cpu,cpuacct ro,relatime master:3 - cgroup c rw,cpu,cpuacct
35 31 0:32 {mounted} /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpuset ro,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw""",
    )
    assert (cpu_quota(tmp_path), memory_left(tmp_path)) == (math.inf, math.inf)
    write_files(tmp_path / "sys/fs/cgroup/cpu,cpuacct", QUOTA_V1)
    write_files(tmp_path / "sys/fs/cgroup/memory", MEMORY_V1)
    assert (cpu_quota(tmp_path), memory_left(tmp_path)) == (1.5, 2 * GIB)


def test_cgroup_version_1_without_limits_has_those_of_its_parent(tmp_path: Path) -> None:
    write_membership(
        tmp_path,
        "2:cpu:/system/a",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
    )
    unlimited = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}
    write_files(tmp_path / "sys/fs/cgroup/cpu/system/a", unlimited)
    assert cpu_quota(tmp_path) == math.inf
    write_files(tmp_path / "sys/fs/cgroup/cpu/system", QUOTA_V1)
    assert cpu_quota(tmp_path) == 1.5


@pytest.mark.parametrize(
    ("quota", "num_cpus", "expected"),
    [("max", 4, 4), ("50000", 4, 1), ("150000", 4, 2), ("200000", 4, 2), ("900000", 4, 4)],
)
def test_a_part_of_a_processor_counts_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, num_cpus: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cpus)))
    write_cgroup2(tmp_path, {"cpu.max": f"{quota} 100000"})
    assert num_usable_cpus(tmp_path) == expected


# Memory that was freed, or holds what was read of files, goes back to the system.


THREADS_IN_LIMITED_SPACE = """
import resource, threading
from pathlib import Path
from fastovms.system.memory import named_sizes, share_heap
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, resource.RLIM_INFINITY))
share_heap()
threading.stack_size(2**20)
before = named_sizes(Path("/proc/self/status"))["VmSize"]
all_run, ended = threading.Barrier(9), threading.Event()
def run():
    kept = [bytes(1000) for _ in range(1000)]
    all_run.wait()
    ended.wait()
threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads: thread.start()
all_run.wait()
print(named_sizes(Path("/proc/self/status"))["VmSize"] - before)
ended.set()
"""


def test_threads_share_a_heap_where_the_address_space_is_limited() -> None:
    command = [sys.executable, "-c", THREADS_IN_LIMITED_SPACE]
    grown = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert grown < 8 * 64 * 2**20


def resident() -> int:
    """Returns this process's resident memory in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_free_memory_between_used_blocks_is_returned() -> None:
    """malloc by itself returns only what is free at the end of a heap."""
    blocks = [bytes(60_000) for _ in range(2000)]  # too large for Python's own pools
    kept = blocks[::16]
    del blocks
    before = resident()
    find_trim()()
    assert before - resident() > 60_000_000
    assert len(kept) == 125


@pytest.mark.slow
@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_clean_pages_of_a_mapped_file_are_returned(tmp_path: Path, access: int) -> None:
    size = 64 * 2**20
    path = tmp_path / "the weights"
    path.write_bytes(b"\1" * size)
    link = tmp_path / "link"
    link.symlink_to(path)
    is_read_only = access == mmap.ACCESS_READ
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=access) as mapped:
        if not is_read_only:
            mapped[5] = 2
        assert mapped[::4096].count(1) == size // 4096
        before = resident()
        assert forget_mapped(link) == (size if is_read_only else 0)
        assert (before - resident() > size * 0.9) is is_read_only
        assert mapped[::4096].count(1) == size // 4096, "it is read anew"
        assert mapped[5] == (1 if is_read_only else 2)
    assert forget_mapped(link) == 0


@pytest.mark.parametrize("is_code", [False, True])
def test_of_a_library_only_the_code_is_given_back(tmp_path: Path, is_code: bool) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(bytes(2**20))
    protection = mmap.PROT_READ | (mmap.PROT_EXEC if is_code else 0)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 2**20, mmap.MAP_PRIVATE, protection),
    ):
        assert forget_mapped(path, only_code=True) == (2**20 if is_code else 0)


# The binding's tables of types are made before a second thread can ask for them.


class _Stop(Exception):
    """Ends loading where the test has seen enough."""


@pytest.mark.slow
def test_tables_are_made_before_a_tokenizer_is_loaded_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_by: list[threading.Thread] = []

    def make() -> None:
        memory.make_binding_tables()
        made_by.append(threading.current_thread())

    def load(*_: object) -> Tokenizer:
        assert made_by == [loader]
        assert threading.current_thread() is not loader
        raise _Stop

    loader = threading.current_thread()
    monkeypatch.setattr(loading, "make_binding_tables", make)
    monkeypatch.setattr(Tokenizer, "load", load)
    with pytest.raises(_Stop):
        loading.load_models([ModelConfig(DEMO_MODEL, ("m",))], MediaConfig())
