"""Gives memory back to the system: what was freed, and malloc keeps, and what was read of mapped
files."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_MADV_DONTNEED: Final = 4
"""See madvise(2): what is read again comes from the page cache, or from the disk."""


def find_trim() -> Callable[[], None]:
    """Returns a function that gives what malloc keeps for later back to the system. It lets other
    threads run meanwhile, and does nothing where the C library is not glibc."""
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
    as they are: what was written would be lost. Of a library only the code may be given back: of
    what is read-only some was written when it was loaded."""
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
