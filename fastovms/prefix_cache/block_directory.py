"""Owns a directory of blocks: which are there, which go when there is no room, and who may use it.

    DIRECTORY/lock                     held by the process that uses it
    DIRECTORY/written.json             what has been written today
    DIRECTORY/MODEL/KEY                a block, see `block_file`

MODEL begins with the fingerprint of a model, for people: a key is that of one model alone.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.prefix_cache.block_file import (
    HEAD_SIZE,
    UNFINISHED,
    DamagedBlock,
    Rows,
    read_block,
    write_block,
)
from fastovms.prefix_cache.prefix_keys import KEY_SIZE
from fastovms.prefix_cache.write_budget import NOTHING_WRITTEN, WriteBudget, WrittenToday
from fastovms.system.file_lock import lock_file
from fastovms.system.user_dirs import private_directory

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
WRITTEN_FILE: Final = "written.json"

MIN_FREE_SHARE: Final = 0.05
"""The share of the disk that is left free, for others."""

_EVICTED_SHARE: Final = 0.05
"""The share of what there is that is made free at once, since to find the oldest takes a look at
all."""

_USED_EVERY: Final = 3600.0
"""Seconds after which a file that is used is marked as used again: each mark is a write."""

_KEPT_EVERY: Final = 64 * 1024**2
"""Bytes after which it is written down how many were written today: as many may be forgotten when
the process is killed."""

_LATER: Final = 1e-3
"""By how many seconds a block counts as used before the one in front of it, which must not go
first."""


class DirectoryInUse(Exception):
    """Another process uses the directory."""


class NoRoom(Exception):
    """A block is not to be written now. The text says why."""


class Held(NamedTuple):
    """What a directory, or one of its folders, holds."""

    num_blocks: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class _Block:
    """A block on the disk, with when it was last used, in seconds since 1970."""

    path: Path
    size: int
    used_at: float

    @property
    def folder(self) -> str:
        return self.path.parent.name


def block_files(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the files of all blocks, and those that were never finished. What is no file, but has
    such a name, is left alone: to open a pipe may take for ever.

    Raises:
        OSError: the directory cannot be read.
    """
    with os.scandir(directory) as folders:
        for folder in folders:
            if folder.is_dir(follow_symlinks=False):
                with os.scandir(folder) as entries:
                    yield from (
                        entry
                        for entry in entries
                        if _is_ours(entry.name) and entry.is_file(follow_symlinks=False)
                    )


def _is_ours(name: str) -> bool:
    key = name.removeprefix(UNFINISHED)
    return len(key) == 2 * KEY_SIZE and not key.strip("0123456789abcdef")


class BlockDirectory:
    """The directory of one process. Its methods may be called by any thread; those that read or
    write take as long as the disk."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        *,
        bytes_per_second: float = float("inf"),
        bytes_per_day: float = float("inf"),
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """
        Raises:
            DirectoryInUse: another process has it.
            OSError: it cannot be made or read.
        """
        self.directory = directory
        self._max_bytes = max_bytes
        self._unix_time = unix_time
        self._blocks: dict[bytes, _Block] = {}
        self._num_bytes = 0
        self._held: defaultdict[str, Held] = defaultdict(Held)
        self._unkept = 0
        self._guard = threading.Lock()
        private_directory(directory)
        try:
            self._lock = lock_file(directory / LOCK_FILE)
        except BlockingIOError:
            raise DirectoryInUse(f"another process uses {directory}") from None
        try:
            written = _read_written(directory / WRITTEN_FILE)
            self._find_blocks()
        except BaseException:
            os.close(self._lock)
            raise
        self.budget = WriteBudget(bytes_per_second, bytes_per_day, written, unix_time=unix_time)

    def close(self) -> None:
        """Lets the directory go."""
        self._keep_written()
        os.close(self._lock)

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def held(self, folder: str) -> Held:
        """Returns what one of its folders holds."""
        return self._held.get(folder, Held())

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def read(self, key: bytes, rows: Rows, position: int) -> int:
        """Reads a block into `rows` and returns the bytes of its file; 0 = it cannot be had, which
        has been logged, and it is gone.

        Args:
            position: how many blocks its text has before it.
        """
        with self._guard:
            block = self._blocks.get(key)
        if block is None:
            return 0
        try:
            num_bytes = read_block(block.path, key, rows)
        except DamagedBlock as error:
            logger.warning("prefix cache: %s is damaged: %s", block.path, error)
        except FileNotFoundError:
            logger.info("prefix cache: %s is gone", block.path)
            self._forget_missing()
        except OSError as error:
            logger.warning("prefix cache: cannot read %s: %s", block.path, error)
        else:
            self._mark_used(block, position)
            return num_bytes
        self._drop(key, block)
        return 0

    def write(self, folder: str, key: bytes, content: NDArray[np.uint8], position: int) -> int:
        """Writes a block below a folder of the directory, and returns the bytes of its file.

        Args:
            position: how many blocks its text has before it.

        Raises:
            NoRoom: the budget of the day is spent, or the disk is nearly full.
            OSError: it cannot be written.
        """
        size = HEAD_SIZE + content.nbytes
        if not self.budget.has_room(size):
            raise NoRoom("as much as is allowed has been written today")
        if not self._make_room(size):
            raise NoRoom("the disk is nearly full")
        path = self.directory / folder / key.hex()
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_block(path, key, content)
        block = _Block(path, size, 0.0)
        with self._guard:
            self._forget(key)  # it may have been there
            self._note(key, block)
        self._mark_used(block, position)
        self._unkept += size
        if self._unkept >= _KEPT_EVERY:
            self._keep_written()
        return size

    def _keep_written(self) -> None:
        """Writes down what has been written today, for the next process."""
        self._unkept = 0
        with suppress(OSError):
            descriptor = os.open(
                self.directory / WRITTEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
            )
            with open(descriptor, "w") as file:
                json.dump(self.budget.written._asdict(), file)

    def _find_blocks(self) -> None:
        for entry in block_files(self.directory):
            try:
                if entry.name.startswith(UNFINISHED):
                    os.unlink(entry)
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError:  # somebody has cleared it, or it is read-only
                continue
            block = _Block(Path(entry), status.st_size, status.st_mtime)
            self._note(bytes.fromhex(entry.name), block)

    def _forget_missing(self) -> None:
        """Forgets the blocks that somebody has erased, so that they may be written again."""
        with self._guard:
            blocks = list(self._blocks.items())
        missing = [(key, block) for key, block in blocks if not os.path.exists(block.path)]
        with self._guard:
            for key, block in missing:
                if self._blocks.get(key) is block:  # it has not been written again meanwhile
                    self._forget(key)

    def _note(self, key: bytes, block: _Block) -> None:
        self._blocks[key] = block
        self._count(block, 1)

    def _forget(self, key: bytes) -> None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self._count(block, -1)

    def _count(self, block: _Block, sign: int) -> None:
        self._num_bytes += sign * block.size
        num_blocks, num_bytes = self._held[block.folder]
        self._held[block.folder] = Held(num_blocks + sign, num_bytes + sign * block.size)

    def _mark_used(self, block: _Block, position: int) -> None:
        used_at = self._unix_time() - position * _LATER
        if used_at - block.used_at > _USED_EVERY:
            with suppress(OSError):
                os.utime(block.path, (used_at, used_at))
        block.used_at = used_at

    def _make_room(self, size: int) -> bool:
        """Removes the blocks that were not used for longest, and returns whether there is room."""
        missing = self._num_bytes + size - self._max_bytes
        disk = os.statvfs(self.directory)
        num_free = disk.f_bavail * disk.f_frsize
        missing = max(
            missing, size + int(MIN_FREE_SHARE * disk.f_blocks * disk.f_frsize) - num_free
        )
        if missing <= 0:
            return True
        if missing > self._num_bytes or size > self._max_bytes:
            return False
        missing = max(missing, int(_EVICTED_SHARE * self._num_bytes))
        with self._guard:
            oldest = sorted(self._blocks.items(), key=lambda item: item[1].used_at)
        for key, block in oldest:
            if missing <= 0:
                break
            missing -= block.size
            self._drop(key, block)
        return True

    def _drop(self, key: bytes, block: _Block) -> None:
        with self._guard:
            self._forget(key)
        with suppress(OSError):
            block.path.unlink()


def _read_written(path: Path) -> WrittenToday:
    """Returns what the file says; nothing, if it is damaged or there is none."""
    try:
        content = json.loads(path.read_bytes())
        return WrittenToday(int(content["day"]), int(content["num_bytes"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return NOTHING_WRITTEN
