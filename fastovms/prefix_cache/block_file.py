"""Reads and writes the file of one block: a head with a checksum, then the memory of the block.

A file is written under another name and renamed, so that whoever finds it finds it whole, unless
the machine has lost its power before the kernel has written it to the disk, which nobody waits for.
Whatever is wrong with a file is found when it is read, and costs no more than that.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Rows = Sequence[NDArray[np.uint8]]
"""The memory of a block: contiguous arrays, one or more for each layer."""

UNFINISHED: Final = ".unfinished-"
"""How the names of files begin that are being written."""

_MAGIC: Final = b"fovmskv1"
_HEAD: Final = struct.Struct("<8s32sQI")
"""Magic number, key, size of what follows in bytes, CRC-32 of all this and of what follows."""

HEAD_SIZE: Final = _HEAD.size
_MAX_VECTORS: Final = 1024
"""How many arrays Linux reads or writes in one call (IOV_MAX)."""


class DamagedBlock(Exception):
    """A file does not hold what its name says. The text says why."""


def write_block(path: Path, key: bytes, content: NDArray[np.uint8]) -> int:
    """Writes the file of a block, and returns its size in bytes.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    unsigned = _HEAD.pack(_MAGIC, key, content.nbytes, 0)
    head = _HEAD.pack(_MAGIC, key, content.nbytes, zlib.crc32(content.data, zlib.crc32(unsigned)))
    unfinished = path.with_name(UNFINISHED + path.name)
    size = HEAD_SIZE + content.nbytes
    try:
        descriptor = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        try:
            rest = [memoryview(head), content.data]
            while rest:
                rest = _after(rest, os.writev(descriptor, rest))
        finally:
            os.close(descriptor)
        unfinished.rename(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    return size


def _after(vectors: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Returns what is left of vectors behind their first bytes."""
    left = []
    for vector in vectors:
        if num_bytes < len(vector):
            left.append(vector[num_bytes:])
        num_bytes = max(0, num_bytes - len(vector))
    return left


def read_block(path: Path, key: bytes, rows: Rows) -> int:
    """Reads the file of a block into `rows`, whatever is in them, and returns its size in bytes.

    Raises:
        DamagedBlock: it is cut, changed or another one's. What `rows` hold then is of no use.
        OSError: it cannot be read, or is not there.
    """
    expected = sum(row.nbytes for row in rows)
    head = bytearray(HEAD_SIZE)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size != HEAD_SIZE + expected:
            raise DamagedBlock(f"it has {size} bytes, not {HEAD_SIZE + expected}")
        num_read = os.readv(descriptor, [head])
        for first in range(0, len(rows), _MAX_VECTORS):
            num_read += os.readv(
                descriptor, [row.data for row in rows[first : first + _MAX_VECTORS]]
            )
    finally:
        os.close(descriptor)
    if num_read != size:
        raise DamagedBlock(f"only {num_read} of {size} bytes could be read")
    magic, its_key, num_bytes, checksum = _HEAD.unpack(head)
    if magic != _MAGIC or its_key != key or num_bytes != expected:
        raise DamagedBlock("it is not the file of this block")
    found = zlib.crc32(_HEAD.pack(magic, its_key, num_bytes, 0))
    for row in rows:
        found = zlib.crc32(row.data, found)
    if found != checksum:
        raise DamagedBlock("its checksum is wrong")
    return size
