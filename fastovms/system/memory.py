"""Memory limits of the machine and the container."""

from __future__ import annotations

import ctypes
import math
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")

_RESOURCES: Final = {"Max address space": "VmSize", "Max data size": "VmData"}
"""The names of limits in /proc/self/limits (see getrlimit(2)), and of their usage in
/proc/self/status."""

_KEPT_SPACE: Final = 384 * 1024**2
"""Bytes of address space that threads and libraries reserve while a model is loaded and warmed up,
in addition to its weights and caches: 355 MB with the demo model. Most of that is never used."""

_NAME_WIDTH: Final = 26
"""The width of the name column in /proc/self/limits."""


def num_usable_cpus(root: Path = _ROOT) -> int:
    """Returns the best number of compute threads: the number of CPUs that this process may use,
    limited to its CPU quota, rounded up.

    With a quota of 1.5 CPUs, one thread would use only two thirds of it; two threads stall for a
    quarter of the time. More threads than the quota would all stall together, because the kernel
    stops them until the next period.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), cpu_quota(root))))


def cpu_quota(root: Path = _ROOT) -> float:
    """Returns the CPU quota of the process's control groups in CPUs, such as 1.5; infinite = no
    limit."""
    return min(map(_cpu_quota_of, _groups("cpu", root)), default=math.inf)


def memory_left(root: Path = _ROOT, *, kept_space: int = _KEPT_SPACE) -> float:
    """Returns the bytes of memory that this process may still allocate within its control groups
    and resource limits; infinite = no limit.

    Args:
        kept_space: bytes of address space that are not used yet and are needed.
    """
    limits = _memory_limits(root, kept_space)
    return min((limit - used for limit, used in limits), default=math.inf)


def memory_limit(root: Path = _ROOT) -> float:
    """Returns the maximum memory of this process in bytes: the machine's memory, or a lower limit
    of its control groups or resource limits."""
    total = named_sizes(root / "proc/meminfo")["MemTotal"]
    return min([total, *(limit for limit, _ in _memory_limits(root, 0))])


def _memory_limits(root: Path, kept_space: int) -> Iterator[tuple[int, int]]:
    """Yields (limit, usage) of each memory limit, in bytes.

    Both versions of control groups are read, wherever they are mounted. A limit applies to all
    descendants of its group, so the groups above this process's own count, too, as far as a
    container can see them.
    """
    for group in _groups("memory", root):
        yield from _memory_limit_of(group)
    used = named_sizes(root / "proc/self/status")
    for line in _lines(root / "proc/self/limits"):
        name, soft = line[:_NAME_WIDTH].rstrip(), line[_NAME_WIDTH:].partition(" ")[0]
        if name in _RESOURCES and soft.isdecimal():
            yield int(soft), min(int(soft), used.get(_RESOURCES[name], 0) + kept_space)


def named_sizes(file: Path) -> dict[str, int]:
    """Returns the sizes in a kernel file such as /proc/meminfo, in bytes by name."""
    fields = (line.split() for line in _lines(file) if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


def _cpu_quota_of(group: Path) -> float:
    match _words(group / "cpu.max"):  # cgroup v2
        case [quota, period] if quota != "max":
            return int(quota) / int(period)
    match _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us"):
        case [quota], [period] if int(quota) > 0:  # -1 = no limit
            return int(quota) / int(period)
    return math.inf


def _memory_limit_of(group: Path) -> Iterator[tuple[int, int]]:
    for limit_file, usage_file, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        match _words(group / limit_file), _words(group / usage_file):
            case [limit], [usage] if limit != "max":
                # The usage includes cached files that are not in use, but the kernel drops them
                # first when the limit is reached. The kubelet subtracts them as well.
                statistics = _words(group / "memory.stat")
                named = dict(zip(statistics[::2], statistics[1::2], strict=False))
                used = max(0, int(usage) - int(named.get(cached, 0)))
                yield int(limit), min(int(limit), used)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yields the directories of this process's control groups and their parents, in each hierarchy
    that may have limits of `controller`."""
    memberships = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        memberships.update(dict.fromkeys(controllers.split(","), path))
    for line in _lines(root / "proc/self/mountinfo"):
        # See proc_pid_mountinfo(5): the mounted directory and the mount point; after the dash the
        # file system's type and options, among them the controllers.
        fields, _, file_system = line.partition(" - ")
        mounted, mount_point = fields.split()[3:5]
        kind, *_, options = file_system.split()
        name = {"cgroup": controller, "cgroup2": ""}.get(kind)
        if name is None or name not in memberships or (name and name not in options.split(",")):
            continue
        top = root / mount_point.lstrip("/")
        path = memberships[name]
        # In a container, its own group may be mounted under the group's path on the host.
        is_below = path == mounted or path.startswith(mounted.rstrip("/") + "/")
        below = path.removeprefix(mounted).strip("/") if is_below else ""
        group = top / below
        yield from (group, *(above for above in group.parents if above.is_relative_to(top)))


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # there is no such limit, or no cgroups at all
        return []


def child_memory(root: Path = _ROOT) -> list[int]:
    """Returns the resident memory of each child process and its descendants, in bytes."""
    sizes = []
    parents = ["self"]
    while parents:
        tasks = root / "proc" / parents.pop() / "task"
        try:
            threads = os.listdir(tasks)
        except OSError:  # the process has ended, or there are too many open files
            continue
        for child in (child for thread in threads for child in _words(tasks / thread / "children")):
            resident = named_sizes(root / "proc" / child / "status").get("VmRSS")
            if resident is not None:  # None: the child has ended in the meantime
                sizes.append(resident)
                parents.append(child)
    return sizes


_ARENA_MAX: Final = -8
"""See mallopt(3)."""


def share_heap() -> None:
    """Makes all threads share one heap if the address space is limited (ulimit -v): glibc otherwise
    reserves 64 MB of it per thread. Call before threads are started. Child processes inherit
    this."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")


_MADV_DONTNEED: Final = 4
"""See madvise(2): released pages are read again from the page cache or the disk."""


def find_trim() -> Callable[[], None]:
    """Returns a function that returns free memory of malloc to the operating system. It releases
    the GIL; without glibc it does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def call() -> None:
        if trim is not None:
            trim(0)

    return call


def forget_mapped(
    file: Path, *, only_code: bool = False, maps: Path = Path("/proc/self/maps")
) -> int:
    """Releases the resident pages of a mapped file, and returns the size of the released mappings
    in bytes. Writable mappings are skipped, because changes would be lost. Use `only_code` for a
    library: the loader has modified some of its read-only pages."""
    path = os.path.realpath(file)
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    num_bytes = 0
    for line in _lines(maps):
        fields = line.split(None, 5)
        if len(fields) < 6 or fields[5] != path or "w" in fields[1]:
            continue
        if only_code and "x" not in fields[1]:
            continue
        begin, end = (int(address, 16) for address in fields[0].split("-"))
        if libc.madvise(begin, end - begin, _MADV_DONTNEED) == 0:
            num_bytes += end - begin
    return num_bytes


# At its first use, the binding makes a table from element types to numpy's, as a static variable of
# C++, and releases the GIL in between. A second thread that then uses the table waits for the
# variable while it holds the GIL, for which the first thread waits. The deadlock stops the whole
# process, which ignores SIGTERM (openvino 2026.4.1, seen once in some thousand starts under load).
def make_binding_tables() -> None:
    """Initializes OpenVINO's tables of element types and dtypes. Call it before several threads use
    OpenVINO. Takes microseconds and is idempotent."""
    import numpy as np  # imported here, because the command line imports this module
    import openvino as ov

    _ = ov.Type(ov.Type.f32.to_dtype())
    _ = ov.Tensor(np.zeros(1, np.float32)).data
