"""Collects the content of a body while it arrives."""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

MAPPED: Final = 1024 * 1024
"""The size in bytes from which a body gets a mapping of memory of its own."""


class BodyBuffer:
    """Collects the pieces of a body without ever copying all of it at once: joining 60 MB takes 50
    ms, mostly of the kernel that commits memory, and the event loop stands still meanwhile.

    A large body lies in a mapping of its own, which the kernel can enlarge without copying, and
    which goes back to the system as soon as nobody needs the body any more.
    """

    __slots__ = ("_mapping", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._mapping: mmap | None = None
        self._size = 0

    def append(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._mapping is None:
            self._pieces.append(piece)
            if self._size < MAPPED:
                return
            self._mapping = mmap(-1, 2 * self._size, MAP_PRIVATE | MAP_ANONYMOUS)
            piece = b"".join(self._pieces)
            self._pieces.clear()
        elif self._size > len(self._mapping):
            self._mapping.resize(2 * self._size)  # pages that are not written to cost nothing
        self._mapping.write(piece)

    def take(self) -> bytes | mmap:
        """Returns the content. The buffer must not be used after it."""
        mapping, pieces = self._mapping, self._pieces
        if mapping is None:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        mapping.resize(self._size)
        return mapping
