"""Keeps small records in a directory, a file of JSON each, so that each is there whole or not at
all, whatever ends the process or the machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from fastovms.system.user_dirs import private_directory

logger = logging.getLogger(__name__)

_SUFFIX: Final = ".json"

Record = TypeVar("Record", bound=msgspec.Struct)

_DRAFT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class RecordFolder(Generic[Record]):
    """A directory of records by their ids. All of it blocks: it is for threads.

    Args:
        directory: is made, where it is not there.
    """

    def __init__(self, directory: Path, kind: type[Record]) -> None:
        self._directory = directory
        self._kind = kind
        private_directory(directory)

    def read_all(self) -> Iterator[Record]:
        """Yields every record. One that cannot be read is passed over, and the log tells so."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            try:
                with open(path, "rb", opener=_open_no_link) as file:
                    yield msgspec.json.decode(file.read(), type=self._kind)
            except (OSError, msgspec.DecodeError) as error:
                logger.error("%s cannot be read: %s", path, error)

    def ids(self) -> set[str]:
        """Returns those of all records, also of those that cannot be read."""
        return {path.stem for path in self._directory.glob(f"*{_SUFFIX}")}

    def write(self, id: str, record: Record) -> None:
        """Writes a record in place of the one with this id. Raises OSError: the old one stays."""
        path = self._path(id)
        draft = _draft(path)
        descriptor = os.open(draft, _DRAFT_FLAGS, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
        sync_directory(self._directory)

    def delete(self, id: str) -> None:
        """Deletes a record, or what a write that has failed has left of it."""
        path = self._path(id)
        path.unlink(missing_ok=True)
        _draft(path).unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self._directory / f"{id}{_SUFFIX}"


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _draft(path: Path) -> Path:
    return path.with_suffix(".new")


def sync_directory(path: Path) -> None:
    """Returns when the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
