"""Simulates a disk that loses power: writes after the last synchronization of a file may be lost,
in any order and in parts.

It is given the changes that SQLite made to its files (see `sqlite_vfs`) and returns the possible
files after a cut. A sector is written entirely or not at all. The name of a new file is durable
after the first synchronization of the file, as with ext4, XFS and Btrfs, and a deletion after that
of the directory: SQLite requests it with a deletion, or with the first synchronization of a journal
that it has opened (UNIXFILE_DIRSYNC in its os_unix.c).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from bench.endurance.state_faults.sqlite_vfs import FileChange, Kind

MEMORY: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A directory in memory, if there is one, for files of which only the contents matter."""
_SECTOR: Final = 512
_JOURNALS: Final = ("-wal", "-journal")

Loss = Callable[[Sequence[FileChange], Random], Sequence[FileChange]]
"""Decides which of the unsynchronized changes reach the disk."""


def _by_sectors(changes: Sequence[FileChange], random: Random) -> Sequence[FileChange]:
    share = random.choice((0.1, 0.5, 0.9))
    pieces = [piece for change in changes for piece in _sectors(change)]
    return [piece for piece in pieces if random.random() < share]


def _sectors(change: FileChange) -> list[FileChange]:
    if change.kind is not Kind.WRITE:
        return [change]
    first, end = change.offset, change.offset + len(change.data)
    bounds = [first, *range((first // _SECTOR + 1) * _SECTOR, end, _SECTOR), end]
    return [
        change._replace(offset=start, data=change.data[start - first : stop - first])
        for start, stop in itertools.pairwise(bounds)
    ]


LOSSES: Final[Mapping[str, Loss]] = {
    "nothing that was synchronized is missing, all else is": lambda changes, random: [],
    "nothing is missing": lambda changes, random: changes,
    "the last writes are missing": lambda changes, random: changes[
        : random.randrange(len(changes) + 1)
    ],
    "the first writes are missing": lambda changes, random: changes[
        random.randrange(len(changes) + 1) :
    ],
    "some sectors are missing": _by_sectors,
}


class _File:
    """A file: its durable content and its unsynchronized changes."""

    def __init__(self, contents: bytes = b"") -> None:
        self._durable = bytearray(contents)
        self._changes: list[FileChange] = []

    def change(self, change: FileChange) -> None:
        self._changes.append(change)

    def synchronize(self) -> None:
        _apply(self._durable, self._changes)
        self._changes.clear()

    def after_cut(self, loss: Loss, random: Random) -> bytes:
        contents = bytearray(self._durable)
        _apply(contents, loss(self._changes, random))
        return bytes(contents)

    @property
    def num_unsynchronized(self) -> int:
        return len(self._changes)


class SimulatedDisk:
    """A directory.

    Args:
        files: the durable files at the beginning.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        # By name: the files that may be there after a power cut; None = no file. Processes see
        # the last one.
        self._names: dict[str, list[_File | None]] = {
            name: [_File(contents)] for name, contents in files.items()
        }
        self._opened_journals: set[str] = set()

    def apply(self, change: FileChange) -> None:
        generations = self._names.setdefault(change.file, [None])
        file = generations[-1]
        match change.kind:
            case Kind.OPEN:
                if change.file.endswith(_JOURNALS):
                    self._opened_journals.add(change.file)
                if file is None:
                    generations.append(_File())
            case Kind.DELETE:
                generations.append(None)
                if change.is_durable:
                    self._synchronize_directory()
            case Kind.SYNC:
                assert file is not None
                file.synchronize()
                generations[:] = [file]
                if change.file in self._opened_journals:
                    self._opened_journals.remove(change.file)
                    self._synchronize_directory()
            case _:
                assert file is not None
                file.change(change)

    def _synchronize_directory(self) -> None:
        for generations in self._names.values():
            del generations[:-1]

    def after_cut(self, loss: Loss, random: Random) -> dict[str, bytes]:
        """Returns the files after the power is restored."""
        files: dict[str, bytes] = {}
        for name, generations in self._names.items():
            file = random.choice(generations)
            if file is not None:
                files[name] = file.after_cut(loss, random)
        return files

    @property
    def num_unsynchronized(self) -> int:
        """Returns the number of changes that a cut may lose."""
        return sum(
            0 if file is None else file.num_unsynchronized
            for generations in self._names.values()
            for file in generations[-1:]
        )


def _apply(contents: bytearray, changes: Sequence[FileChange]) -> None:
    for change in changes:
        if change.kind is Kind.TRUNCATE:
            del contents[change.offset :]
            continue
        end = change.offset + len(change.data)
        if len(contents) < change.offset:
            contents.extend(bytes(change.offset - len(contents)))
        contents[change.offset : end] = change.data
