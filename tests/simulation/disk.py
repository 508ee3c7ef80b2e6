"""A disk under SQLite: what was not synced may be lost or torn at a crash, and writes may fail.

It is a VFS of SQLite, made with ctypes and registered with the library of Python's `sqlite3`. Files
are in memory. A directory's entries count as safe at once.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_void_p,
    cast,
    memmove,
    memset,
    sizeof,
)
from pathlib import Path
from typing import Any, Final

from tests.simulation.world import current

_OK, _IOERR, _FULL, _CANTOPEN, _NOTFOUND = 0, 10, 13, 14, 12
_IOERR_SHORT_READ = _IOERR | 2 << 8
_IOERR_WRITE = _IOERR | 3 << 8
_IOERR_FSYNC = _IOERR | 4 << 8
_IOERR_DELETE_NOENT = _IOERR | 23 << 8
_BUSY: Final = 5
_SHARED, _RESERVED = 1, 2
_UNLOCK, _EXCLUSIVE_SLOT = 1, 8
_OPEN_CREATE, _OPEN_DELETEONCLOSE = 4, 8
DISK_FAULTS: Final = ("full", "write", "sync")
_SECTOR: Final = 512


class DiskFile:
    """The content of a file, and what of it is safe.

    Attributes:
        data: what a reader sees.
        pending: the writes and truncations since the last sync.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.safe = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        self.regions: list[Any] = []
        self.locks: dict[int, int] = {}  # by open file, its level
        self.shared_locks: dict[int, dict[int, int]] = {}  # by slot and open file, its flags

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append((offset, data))
        _put(self.data, offset, data)

    def truncate(self, size: int) -> None:
        self.pending.append((size, None))
        del self.data[size:]

    def sync(self) -> None:
        for offset, content in self.pending:
            if content is None:
                del self.safe[offset:]
            else:
                _put(self.safe, offset, content)
        self.pending.clear()

    def crash(self, chance: random.Random) -> None:
        """Leaves what a loss of power may: of each pending write all, some sectors, or nothing."""
        data = self.safe
        keeps = chance.choice((0.0, 0.5, 1.0))
        for offset, content in self.pending:
            if content is None:
                if chance.random() < keeps:
                    del data[offset:]
                continue
            for start in range(0, len(content), _SECTOR):
                if chance.random() < keeps:
                    _put(data, offset + start, content[start : start + _SECTOR])
        self.data = bytearray(data)
        self.pending.clear()


def _put(data: bytearray, offset: int, content: bytes) -> None:
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(content)] = content


class Disk:
    """The disk of a world.

    Attributes:
        fault: "full", "write", "sync" or "" for none: what fails at the moment.
    """

    def __init__(self, chance: random.Random) -> None:
        self.files: dict[str, DiskFile] = {}
        self.fault = ""
        self._chance = chance

    def crash(self, *, loses_power: bool) -> None:
        """Ends the use of all files. Without a loss of power the system writes all of them."""
        for file in self.files.values():
            if loses_power:
                file.crash(self._chance)
            else:
                file.sync()
            file.regions = []


class _Open:
    """An open file, of the process that has opened it.

    Attributes:
        mapped: the shared memory that SQLite has been given, by region. It looks at it until it
            closes the file, whatever becomes of the file's regions.
    """

    def __init__(self, disk: Disk, name: str, file: DiskFile, *, deletes: bool) -> None:
        self.disk = disk
        self.name = name
        self.file = file
        self.deletes = deletes
        self.mapped: dict[int, Any] = {}
        thread = current()
        self.owner = None if thread is None else thread.process


_state: dict[str, Any] = {"disk": None, "next": 1, "open": {}}


def use_disk(disk: Disk | None) -> None:
    """Has files that are opened from now on be on this disk."""
    _state["disk"] = disk


def cut_off(owner: object) -> None:
    """Has the files that a process has open change nothing any more: it is dead."""
    for number, opened in _state["open"].items():
        if opened.owner is not owner:
            continue
        opened.file.locks.pop(number, None)
        for slot in opened.file.shared_locks.values():
            slot.pop(number, None)
        regions = opened.file.regions  # which SQLite still looks at
        opened.file = DiskFile()
        opened.file.regions = regions


class _File(Structure):
    _fields_ = (("methods", c_void_p), ("number", c_int64))


def _number(file: Any) -> int:
    return cast(file, POINTER(_File)).contents.number  # type: ignore[no-any-return]


def _opened(file: Any) -> _Open:
    return _state["open"][_number(file)]  # type: ignore[no-any-return]


_METHODS: list[tuple[str, Any, Callable[..., int]]] = []
_kept: list[Any] = []


def _method(*types: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    def add(function: Callable[..., int]) -> Callable[..., int]:
        kind = CFUNCTYPE(c_int, c_void_p, *types)
        _METHODS.append((function.__name__, kind, kind(function)))
        return function

    return add


@_method()
def close(file: int) -> int:
    opened = _state["open"].pop(_number(file), None)
    if opened is not None:
        opened.file.locks.pop(_number(file), None)
        for slot in opened.file.shared_locks.values():
            slot.pop(_number(file), None)
    if opened is not None and opened.deletes:
        opened.disk.files.pop(opened.name, None)
    return _OK


@_method(c_void_p, c_int, c_int64)
def read(file: int, buffer: int, amount: int, offset: int) -> int:
    data = bytes(_opened(file).file.data[offset : offset + amount])
    memmove(buffer, data, len(data))
    if len(data) < amount:
        memset(buffer + len(data), 0, amount - len(data))
        return _IOERR_SHORT_READ
    return _OK


@_method(c_void_p, c_int, c_int64)
def write(file: int, buffer: int, amount: int, offset: int) -> int:
    opened = _opened(file)
    fault = opened.disk.fault
    if fault == "full" and offset + amount > len(opened.file.data):
        return _FULL
    if fault == "write":
        return _IOERR_WRITE
    opened.file.write(offset, ctypes.string_at(buffer, amount))
    return _OK


@_method(c_int64)
def truncate(file: int, size: int) -> int:
    _opened(file).file.truncate(size)
    return _OK


@_method(c_int)
def sync(file: int, flags: int) -> int:
    opened = _opened(file)
    if opened.disk.fault in ("sync", "write"):
        return _IOERR_FSYNC
    opened.file.sync()
    return _OK


@_method(POINTER(c_int64))
def file_size(file: int, size: Any) -> int:
    size[0] = len(_opened(file).file.data)
    return _OK


@_method(c_int)
def lock(file: int, level: int) -> int:
    number, locks = _number(file), _opened(file).file.locks
    most = max((held for other, held in locks.items() if other != number), default=0)
    if most > {_SHARED: _RESERVED, _RESERVED: _SHARED}.get(level, 0):
        return _BUSY
    locks[number] = level
    return _OK


@_method(c_int)
def unlock(file: int, level: int) -> int:
    _opened(file).file.locks[_number(file)] = level
    return _OK


@_method(POINTER(c_int))
def check_reserved_lock(file: int, result: Any) -> int:
    result[0] = int(any(held >= _RESERVED for held in _opened(file).file.locks.values()))
    return _OK


@_method(c_int, c_void_p)
def file_control(file: int, operation: int, argument: int) -> int:
    return _NOTFOUND


@_method()
def sector_size(file: int) -> int:
    return _SECTOR


@_method()
def device_characteristics(file: int) -> int:
    return 0


@_method(c_int, c_int, c_int, POINTER(c_void_p))
def shm_map(file: int, region: int, size: int, extend: int, address: Any) -> int:
    opened = _opened(file)
    regions = opened.file.regions
    if region >= len(regions) and not extend:
        address[0] = None
        return _OK
    while region >= len(regions):
        regions.append(ctypes.create_string_buffer(size))
    opened.mapped[region] = regions[region]
    address[0] = ctypes.addressof(regions[region])
    return _OK


@_method(c_int, c_int, c_int)
def shm_lock(file: int, offset: int, amount: int, flags: int) -> int:
    number, locks = _number(file), _opened(file).file.shared_locks
    slots = [locks.setdefault(slot, {}) for slot in range(offset, offset + amount)]
    for slot in slots:
        others = [held for other, held in slot.items() if other != number]
        is_exclusive = any((held | flags) & _EXCLUSIVE_SLOT for held in others)
        if is_exclusive and not flags & _UNLOCK:
            return _BUSY
    for slot in slots:
        if flags & _UNLOCK:
            slot.pop(number, None)
        else:
            slot[number] = flags
    return _OK


@_method()
def shm_barrier(file: int) -> int:
    return _OK


@_method(c_int)
def shm_unmap(file: int, deletes: int) -> int:
    if deletes:
        _opened(file).file.regions = []  # a killed process may still look at the old ones
    return _OK


class _IoMethods(Structure):
    _fields_ = (("version", c_int), *((name, kind) for name, kind, _ in _METHODS))


def _open(vfs: int, name: bytes | None, file: int, flags: int, out_flags: Any) -> int:
    contents = cast(file, POINTER(_File)).contents
    contents.methods = None
    disk = _state["disk"]
    if disk is None:
        return _CANTOPEN
    number = _state["next"]
    _state["next"] += 1
    key = f"temporary-{number}" if name is None else name.decode()
    if key not in disk.files:
        if not flags & _OPEN_CREATE or disk.fault in ("full", "write"):
            return _CANTOPEN
        disk.files[key] = DiskFile()
    deletes = bool(flags & _OPEN_DELETEONCLOSE)
    _state["open"][number] = _Open(disk, key, disk.files[key], deletes=deletes)
    contents.number = number
    contents.methods = ctypes.addressof(_io_methods)
    if out_flags:
        out_flags[0] = flags
    return _OK


def _delete(vfs: int, name: bytes, syncs: int) -> int:
    disk = _state["disk"]
    if disk is None or disk.files.pop(name.decode(), None) is None:
        return _IOERR_DELETE_NOENT
    return _OK


def _access(vfs: int, name: bytes, flags: int, result: Any) -> int:
    disk = _state["disk"]
    result[0] = int(disk is not None and name.decode() in disk.files)
    return _OK


def _full_path(vfs: int, name: bytes, size: int, out: int) -> int:
    memmove(out, name + b"\0", len(name) + 1)
    return _OK


def _randomness(vfs: int, size: int, out: int) -> int:
    memset(out, 7, size)
    return size


def _sleep(vfs: int, microseconds: int) -> int:
    return microseconds


def _current_time(vfs: int, time: Any) -> int:
    time[0] = 2_460_000.5
    return _OK


def _last_error(vfs: int, size: int, out: int) -> int:
    return 0


_FUNCTIONS: Final = (
    ("open", CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_int, POINTER(c_int)), _open),
    ("delete", CFUNCTYPE(c_int, c_void_p, c_char_p, c_int), _delete),
    ("access", CFUNCTYPE(c_int, c_void_p, c_char_p, c_int, POINTER(c_int)), _access),
    ("full_path", CFUNCTYPE(c_int, c_void_p, c_char_p, c_int, c_void_p), _full_path),
    ("dl_open", c_void_p, None),
    ("dl_error", c_void_p, None),
    ("dl_sym", c_void_p, None),
    ("dl_close", c_void_p, None),
    ("randomness", CFUNCTYPE(c_int, c_void_p, c_int, c_void_p), _randomness),
    ("sleep", CFUNCTYPE(c_int, c_void_p, c_int), _sleep),
    ("current_time", CFUNCTYPE(c_int, c_void_p, POINTER(c_double)), _current_time),
    ("last_error", CFUNCTYPE(c_int, c_void_p, c_int, c_void_p), _last_error),
)


class _Vfs(Structure):
    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("max_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        *((name, kind) for name, kind, _ in _FUNCTIONS),
    )


_io_methods = _IoMethods()


def install_disk() -> None:
    """Makes the simulated disk the one that SQLite uses in this process."""
    import sqlite3  # noqa: F401 (loads the library)

    path = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "sqlite3" in line.split("/")[-1] and ".so" in line
    )
    library = ctypes.CDLL(path)
    _io_methods.version = 2
    for name, _, function in _METHODS:
        setattr(_io_methods, name, function)
    vfs = _Vfs(version=1, file_size=sizeof(_File), max_path=512, name=b"simulated", data=None)
    for name, kind, function in _FUNCTIONS:
        if function is not None:
            made = kind(function)
            _kept.append(made)
            setattr(vfs, name, made)
    _kept.append(vfs)
    library.sqlite3_vfs_register.argtypes = (c_void_p, c_int)
    if library.sqlite3_vfs_register(byref(vfs), 1) != _OK:
        raise RuntimeError("SQLite does not take the simulated disk")
