"""The directory of KV cache blocks on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import struct
import threading
import time
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.server_config import PrefixCacheConfig
from fastovms.system.disk import lock_file, open_file, private_directory, read_file

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelContents:
    """The cached blocks of one model.

    Attributes:
        folder: the name of the model's folder in the directory.
        used_at: the Unix time at which a block was last used.
    """

    folder: str
    num_blocks: int = 0
    num_bytes: int = 0
    used_at: float = 0.0

    @property
    def model(self) -> str:
        """The model's name, limited to characters that file names may have."""
        return self.folder.partition("-")[2]


def read_contents_by_model(directory: Path) -> list[ModelContents]:
    """Returns the contents by model, last used first. Raises OSError if the directory cannot be
    read."""
    found: dict[str, ModelContents] = {}
    for entry in block_files(directory):
        folder = os.path.basename(os.path.dirname(entry.path))
        with suppress(FileNotFoundError):  # a server has just evicted the block
            status = entry.stat(follow_symlinks=False)
            contents = found.setdefault(folder, ModelContents(folder))
            contents.num_blocks += 1
            contents.num_bytes += status.st_size
            contents.used_at = max(contents.used_at, status.st_mtime)
    return sorted(found.values(), key=lambda contents: -contents.used_at)


def delete_blocks(directory: Path, model: str | None) -> int:
    """Deletes the cached blocks of a model (None = of all models) and returns their number. A
    server that uses them recomputes their tokens. Raises OSError if blocks cannot be deleted."""
    num_erased = 0
    for entry in list(block_files(directory)):
        folder = os.path.basename(os.path.dirname(entry.path))
        if model is None or ModelContents(folder).model == model:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
                num_erased += 1
    return num_erased


KEY_SIZE = 32
"""The bytes of a block's key, a SHA-256 digest."""


class PrefixNamespace(NamedTuple):
    """The scope within which cached prefixes are shared.

    Attributes:
        tenant: the tenant that may use the prefixes; "" = the server has no API keys.
        salt: the requests' `prefix_salt`, from their adapter and `cache_salt`.
        root: the root of the prefix cache in memory; see `engine.scheduling.blocks`.
    """

    tenant: str
    salt: bytes
    root: int


def prefix_keys(
    fingerprint: bytes, namespace: PrefixNamespace, token_ids: array[int], block_size: int
) -> Iterator[bytes]:
    """Yields the key of each full block of a text. A key identifies all tokens up to the end of its
    block. `fingerprint` is a hash of the model and of everything else that affects a block's
    content."""
    tenant = namespace.tenant.encode()
    head = f"{namespace.root} {len(tenant)} {len(namespace.salt)} ".encode()
    digest = hashlib.sha256(b"".join((fingerprint, head, tenant, namespace.salt)))
    tokens = memoryview(token_ids).cast("B")
    size = block_size * token_ids.itemsize
    for end in range(size, len(tokens) + 1, size):
        digest.update(tokens[end - size : end])
        yield digest.digest()


Rows = Sequence[NDArray[np.uint8]]
"""The memory of a block: one or more contiguous arrays for each layer."""

UNFINISHED: Final = ".unfinished-"
"""The prefix of the names of files that are being written."""

_MAGIC: Final = b"fovmskv1"
_HEAD: Final = struct.Struct("<8s32sQI")
"""The header of a block file: magic number, key, bytes after the header, and CRC-32 of everything
else."""

HEAD_SIZE: Final = _HEAD.size
_MAX_VECTORS: Final = 1024
"""The maximum number of buffers that Linux reads or writes in one call (IOV_MAX)."""


class CorruptBlock(Exception):
    """Raised if the content of a block file is invalid; the message is the reason."""


def write_block(path: Path, key: bytes, content: NDArray[np.uint8]) -> int:
    """Writes the file of a block and returns its size in bytes. Raises OSError if the file cannot
    be written; a partial file is deleted. `content` is the block's memory, uint8 [bytes].

    The file has a header with a checksum, followed by the block's memory. It is written under a
    temporary name and renamed, so it is complete unless the machine loses power before the kernel
    has written it to disk (there is no fsync). A corrupt file is detected when it is read.
    """
    unsigned = _HEAD.pack(_MAGIC, key, content.nbytes, 0)
    head = _HEAD.pack(_MAGIC, key, content.nbytes, zlib.crc32(content.data, zlib.crc32(unsigned)))
    unfinished = path.with_name(UNFINISHED + path.name)
    size = HEAD_SIZE + content.nbytes
    try:
        descriptor = open_file(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
    """Returns the remaining vectors after their first `num_bytes` bytes."""
    left = []
    for vector in vectors:
        if num_bytes < len(vector):
            left.append(vector[num_bytes:])
        num_bytes = max(0, num_bytes - len(vector))
    return left


def read_block(path: Path, key: bytes, rows: Rows) -> int:
    """Reads the file of a block into `rows` and returns its size in bytes.

    Raises:
        CorruptBlock: the file is truncated, corrupt or of another block. The contents of `rows` are
            then invalid.
        OSError: the file is missing or cannot be read.
    """
    expected = sum(row.nbytes for row in rows)
    head = bytearray(HEAD_SIZE)
    descriptor = open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size != HEAD_SIZE + expected:
            raise CorruptBlock(f"the file has {size} bytes, not {HEAD_SIZE + expected}")
        num_read = os.readv(descriptor, [head])
        for first in range(0, len(rows), _MAX_VECTORS):
            num_read += os.readv(
                descriptor, [row.data for row in rows[first : first + _MAX_VECTORS]]
            )
    finally:
        os.close(descriptor)
    if num_read != size:
        raise CorruptBlock(f"only {num_read} of {size} bytes could be read")
    magic, its_key, num_bytes, checksum = _HEAD.unpack(head)
    if magic != _MAGIC or its_key != key or num_bytes != expected:
        raise CorruptBlock("the file has the header of another block")
    found = zlib.crc32(_HEAD.pack(magic, its_key, num_bytes, 0))
    for row in rows:
        found = zlib.crc32(row.data, found)
    if found != checksum:
        raise CorruptBlock("the checksum does not match")
    return size


_DAY = 24 * 3600.0


class DailyWrites(NamedTuple):
    """The bytes that were written on one day.

    Attributes:
        day: the number of days since 1970.
    """

    day: int
    num_bytes: int


NOTHING_WRITTEN = DailyWrites(0, 0)


class WriteBudget:
    """Limits the bytes written per second and per day. Thread-safe.

    Args:
        bytes_per_second: the maximum rate.
        bytes_per_day: the maximum per day, from midnight UTC.
        written: the bytes already written, also by earlier processes.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        bytes_per_second: float,
        bytes_per_day: float,
        written: DailyWrites = NOTHING_WRITTEN,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._bytes_per_day = bytes_per_day
        self._written = written
        self._clock = clock
        self._unix_time = unix_time
        self._free_at = clock()
        self._lock = threading.Lock()

    @property
    def written(self) -> DailyWrites:
        """The bytes written today so far."""
        day = int(self._unix_time() / _DAY)
        return self._written if self._written.day == day else DailyWrites(day, 0)

    def has_room(self, num_bytes: int) -> bool:
        """Returns whether `num_bytes` may still be written today."""
        return self.written.num_bytes + num_bytes <= self._bytes_per_day

    def spend(self, num_bytes: int, share: float = 1.0) -> float:
        """Records written bytes, and returns the seconds to wait before the next write. `share` is
        the fraction of the maximum rate that may be used."""
        with self._lock:
            day, before = self.written
            self._written = DailyWrites(day, before + num_bytes)
            now = self._clock()
            seconds = num_bytes / (self._bytes_per_second * share)
            self._free_at = max(now, self._free_at) + seconds
            return self._free_at - now


LOCK_FILE: Final = "lock"
WRITTEN_FILE: Final = "written.json"

MIN_FREE_SHARE: Final = 0.05
"""The fraction of the disk that is left free for other uses."""

_EVICTED_SHARE: Final = 0.05
"""The fraction of the cached bytes that is freed at once, because finding the oldest blocks
requires a scan of all."""

_USED_EVERY: Final = 3600.0
"""The seconds after which a file's time of use is updated again; each update writes to the disk."""

_KEPT_EVERY: Final = 64 * 1024**2
"""After this many written bytes, the number of bytes written today is saved. At most this many are
not counted if the process is killed."""

_LATER: Final = 1e-3
"""Seconds by which a block's time of use is earlier than that of the preceding block, which must
not be evicted first."""


class NoRoom(Exception):
    """Raised if a block must not be written now; the message is the reason."""


class FolderTotals(NamedTuple):
    """The number and bytes of the blocks in the directory, or in one of its folders."""

    num_blocks: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class _Block:
    """A block on disk, with the Unix time of its last use."""

    path: Path
    size: int
    used_at: float

    @property
    def folder(self) -> str:
        return self.path.parent.name


def block_files(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the files of all blocks, including unfinished ones. Other types of files with such
    names are skipped, because opening a pipe could block forever. Raises OSError if the directory
    cannot be read."""
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
    """A directory of cached blocks, used by one process. Thread-safe; reads and writes block while
    the disk is slow.

    The process that uses the directory holds `DIRECTORY/lock`; `DIRECTORY/written.json` has the
    bytes written today, and `DIRECTORY/MODEL/KEY` is a block. MODEL is part of the
    model's fingerprint, followed by the model's name for people.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        *,
        bytes_per_second: float = float("inf"),
        bytes_per_day: float = float("inf"),
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """Raises OSError if the directory cannot be created or read, or another process uses it."""
        self.directory = directory
        self._max_bytes = max_bytes
        self._unix_time = unix_time
        self._blocks: dict[bytes, _Block] = {}
        self._num_bytes = 0
        self._held: defaultdict[str, FolderTotals] = defaultdict(FolderTotals)
        self._unkept = 0
        self._guard = threading.Lock()
        private_directory(directory, may_be_link=True)
        self._lock = lock_file(directory / LOCK_FILE)
        try:
            written = _read_written(directory / WRITTEN_FILE)
            self._find_blocks()
        except BaseException:
            os.close(self._lock)
            raise
        self.budget = WriteBudget(bytes_per_second, bytes_per_day, written, unix_time=unix_time)

    def close(self) -> None:
        """Saves the bytes written today, and unlocks the directory."""
        self._keep_written()
        os.close(self._lock)

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def held(self, folder: str) -> FolderTotals:
        """Returns the number and bytes of the blocks in a folder."""
        return self._held.get(folder, FolderTotals())

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def read(self, key: bytes, rows: Rows, position: int) -> int:
        """Reads a block into `rows` and returns the bytes of its file. Returns 0 if the block is
        not in the directory, or is unreadable; an unreadable block is deleted, and the reason
        logged. `position` is the number of preceding blocks of the text."""
        with self._guard:
            block = self._blocks.get(key)
        if block is None:
            return 0
        try:
            num_bytes = read_block(block.path, key, rows)
        except CorruptBlock as error:
            logger.warning("prefix cache: block file %s is corrupt: %s", block.path, error)
        except FileNotFoundError:
            logger.info("prefix cache: block file %s no longer exists", block.path)
            self._forget_missing()
        except OSError as error:
            logger.warning("prefix cache: cannot read %s: %s", block.path, error)
        else:
            self._mark_used(block, position)
            return num_bytes
        self._drop(key, block)
        return 0

    def write(self, folder: str, key: bytes, content: NDArray[np.uint8], position: int) -> int:
        """Writes a block into a folder of the directory, and returns the bytes of its file. Raises
        NoRoom if the daily write limit is reached or the disk is nearly full; OSError if the block
        cannot be written. `position` is the number of preceding blocks of the text."""
        size = HEAD_SIZE + content.nbytes
        if not self.budget.has_room(size):
            raise NoRoom("the limit --prefix-cache-daily-writes is reached for today")
        if not self._make_room(size):
            raise NoRoom("the disk is nearly full")
        path = self.directory / folder / key.hex()
        private_directory(path.parent)
        write_block(path, key, content)
        block = _Block(path, size, 0.0)
        with self._guard:
            self._forget(key)  # the block may have been known already
            self._note(key, block)
        self._mark_used(block, position)
        self._unkept += size
        if self._unkept >= _KEPT_EVERY:
            self._keep_written()
        return size

    def _keep_written(self) -> None:
        """Saves the number of bytes written today for the next process."""
        self._unkept = 0
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with open(open_file(self.directory / WRITTEN_FILE, flags), "w") as file:
                json.dump(self.budget.written._asdict(), file)

    def _find_blocks(self) -> None:
        for entry in block_files(self.directory):
            try:
                if entry.name.startswith(UNFINISHED):
                    os.unlink(entry)
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError:  # another process deleted it, or it is read-only
                continue
            block = _Block(Path(entry), status.st_size, status.st_mtime)
            self._note(bytes.fromhex(entry.name), block)

    def _forget_missing(self) -> None:
        """Removes blocks that another process has deleted from the index, so that they may be
        written again."""
        with self._guard:
            blocks = list(self._blocks.items())
        missing = [(key, block) for key, block in blocks if not os.path.exists(block.path)]
        with self._guard:
            for key, block in missing:
                if self._blocks.get(key) is block:  # the block was not rewritten since the check
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
        self._held[block.folder] = FolderTotals(num_blocks + sign, num_bytes + sign * block.size)

    def _mark_used(self, block: _Block, position: int) -> None:
        used_at = self._unix_time() - position * _LATER
        if used_at - block.used_at > _USED_EVERY:
            with suppress(OSError):
                os.utime(block.path, (used_at, used_at))
        block.used_at = used_at

    def _make_room(self, size: int) -> bool:
        """Deletes the least recently used blocks until `size` bytes fit. Returns whether they
        fit."""
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


def _read_written(path: Path) -> DailyWrites:
    """Returns the saved number of bytes written; zero if the file is corrupt or missing."""
    try:
        content = json.loads(read_file(path))
        return DailyWrites(int(content["day"]), int(content["num_bytes"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return NOTHING_WRITTEN


FOLDER: Final = "prefix-cache"
"""The directory's name in the state directory."""

_DEFAULT_BYTES: Final = 2 * 1024**3
_ENOUGH_FREE: Final = 20 * 1024**3


def open_block_directory(
    config: PrefixCacheConfig,
    state_dir: Path | None,
    unix_time: Callable[[], float] = time.time,
) -> BlockDirectory | None:
    """Opens the directory of cached blocks. None = no disk cache, for a reason that is logged
    unless there is no directory for it or the operator has disabled it.

    Args:
        state_dir: the state directory; None = no state directory.
        unix_time: see `BlockDirectory`.
    """
    directory = config.directory or (None if state_dir is None else state_dir / FOLDER)
    if directory is None or config.max_bytes == 0:
        return None
    try:
        private_directory(directory, may_be_link=config.directory is not None)
        max_bytes = config.max_bytes or _default_bytes(directory)
        if config.max_bytes:
            total = shutil.disk_usage(directory).total
            max_bytes = min(max_bytes, int((1 - MIN_FREE_SHARE) * total))
        if max_bytes == 0:
            return None
        opened = BlockDirectory(
            directory,
            max_bytes,
            bytes_per_second=config.bytes_per_second,
            bytes_per_day=config.bytes_per_day,
            unix_time=unix_time,
        )
    except OSError as error:
        place, reason = error.filename or directory, error.strerror or error
        logger.warning("prefix cache: prompts are kept in memory only: %s: %s", place, reason)
        return None
    logger.info(
        "prefix cache: %d blocks, %.3g of %.3g GiB, in %s",
        opened.num_blocks,
        opened.num_bytes / 1024**3,
        max_bytes / 1024**3,
        directory,
    )
    return opened


def _default_bytes(directory: Path) -> int:
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize >= _ENOUGH_FREE:
        return _DEFAULT_BYTES
    logger.info(
        "prefix cache: prompts are not stored in %s, because its disk has less than 20 GiB "
        "free; --prefix-cache-disk-size overrides this",
        directory,
    )
    return 0
