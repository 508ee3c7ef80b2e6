"""Memory limits of the machine and the container."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import openvino as ov

# Finds what the control groups (cgroups) of this process let it take of processors and memory.
#
# Both versions of cgroups are read, wherever they are mounted. A limit holds for all groups below
# the one that has it, so the tightest of this process's own group and of those above it counts,
# as far as a container sees them.


_ROOT: Final = Path("/")


def num_usable_cpus(root: Path = _ROOT) -> int:
    """Returns how many threads are worth to compute at once: one for each processor that this
    process may run on, and no more than its quota keeps busy.

    A part of a processor counts as one: a quota of 1.5 would be used to two thirds only,
    otherwise. Two threads then stall for a quarter of the time, which whole quotas spare them. More
    threads than the quota keeps busy stall together: the kernel stops all of them until the next
    period.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), cpu_quota(root))))


def cpu_quota(root: Path = _ROOT) -> float:
    """Returns how many processors' time this process may take, such as 1.5; infinite = no limit."""
    return min(map(_cpu_quota_of, _groups("cpu", root)), default=math.inf)


def memory_left(root: Path = _ROOT) -> float:
    """Returns how many bytes this process may take besides what it has; infinite = no limit."""
    return min(map(_memory_left_in, _groups("memory", root)), default=math.inf)


def _cpu_quota_of(group: Path) -> float:
    match _words(group / "cpu.max"):  # version 2
        case [quota, period] if quota != "max":
            return int(quota) / int(period)
    match _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us"):
        case [quota], [period] if int(quota) > 0:  # -1 = no limit
            return int(quota) / int(period)
    return math.inf


def _memory_left_in(group: Path) -> float:
    for limit_file, usage_file, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        match _words(group / limit_file), _words(group / usage_file):
            case [limit], [usage] if limit != "max":
                # Files that were read and are not in use are counted as taken, but are dropped
                # before the limit hurts. The kubelet leaves them out as well.
                statistics = _words(group / "memory.stat")
                named = dict(zip(statistics[::2], statistics[1::2], strict=False))
                return max(0, int(limit) - int(usage) + int(named.get(cached, 0)))
    return math.inf


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yields the directories of the groups that this process is in, and of those above them, in
    each hierarchy that may have the limits of `controller`."""
    memberships = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        memberships.update(dict.fromkeys(controllers.split(","), path))
    for line in _lines(root / "proc/self/mountinfo"):
        # See proc_pid_mountinfo(5): what is mounted, then where; behind the dash its type and the
        # options of its file system, of which the controllers are some.
        fields, _, file_system = line.partition(" - ")
        mounted, mount_point = fields.split()[3:5]
        kind, *_, options = file_system.split()
        name = {"cgroup": controller, "cgroup2": ""}.get(kind)
        if name is None or name not in memberships or (name and name not in options.split(",")):
            continue
        top = root / mount_point.lstrip("/")
        path = memberships[name]
        # A container may see its own group mounted, and yet be told the group's path on the host.
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


_MADV_DONTNEED: Final = 4
"""See madvise(2): what is read again comes from the page cache, or from the disk."""


def find_trim() -> Callable[[], None]:
    """Returns a function that gives what malloc keeps for later back to the system. It lets other
    threads run in the meantime, and does nothing if the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def call() -> None:
        if trim is not None:
            trim(0)

    return call


def forget_mapped(
    file: Path, *, only_code: bool = False, maps: Path = Path("/proc/self/maps")
) -> int:
    """Gives back the memory that holds what this process has read of a file it has mapped, and
    returns the bytes of the mappings that the system has taken. Mappings that may be written stay
    as they are: what was written would be lost. Only the code of a library may be released: some
    read-only pages were written when it was loaded."""
    path = os.path.realpath(file)
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    num_bytes = 0
    for line in maps.read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or fields[5] != path or "w" in fields[1]:
            continue
        if only_code and "x" not in fields[1]:
            continue
        begin, end = (int(address, 16) for address in fields[0].split("-"))
        if libc.madvise(begin, end - begin, _MADV_DONTNEED) == 0:
            num_bytes += end - begin
    return num_bytes


# The binding makes a table from element types to numpy's at its first use, as a static variable
# of C++, and lets go of the GIL meanwhile. A second thread that asks for the table in that moment
# waits for the variable while it holds the GIL, for which the first one waits: the whole process
# stands still, deaf to SIGTERM (openvino 2026.4.1, seen once in some thousand starts under load).


def make_binding_tables() -> None:
    """Makes both tables, of element types and of numpy's dtypes. It is to be called before threads
    use OpenVINO side by side, takes microseconds, and may be repeated."""
    _ = ov.Type(ov.Type.f32.to_dtype())
    _ = ov.Tensor(np.zeros(1, np.float32)).data
