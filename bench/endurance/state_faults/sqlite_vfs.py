"""A layer between SQLite and its files in this process. It observes every change of a file before
it is made, and may delay the change or make it fail.

SQLite calls such a layer a VFS (https://sqlite.org/vfs.html). It is registered with the library
that Python's sqlite3 uses, so that the server's own changes are observed.
"""

from __future__ import annotations

import _sqlite3
import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

_OK: Final = 0
_VERSION_OF_SHARED_MEMORY: Final = 2
"""The version of a file's methods; lower versions do not support a write-ahead log."""


class Kind(Enum):
    """The kind of a change. OPEN creates the file if it does not exist."""

    OPEN = "open"
    WRITE = "write"
    TRUNCATE = "truncate"
    SYNC = "sync"
    DELETE = "delete"


class FileChange(NamedTuple):
    """A change of a file.

    Attributes:
        file: the name without its directory.
        offset: the offset of a write in bytes, or the new size of a truncation.
        data: the bytes of a write.
        is_durable: for a deletion: whether the directory is also synchronized.
    """

    kind: Kind
    file: str
    offset: int = 0
    data: bytes = b""
    is_durable: bool = False


Watch = Callable[[FileChange], int]
"""A function that is called before each change, in the thread that makes it. It returns 0, or the
SQLite error code with which the change fails."""


class _Vfs(ctypes.Structure):
    pass


_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(_Vfs),
    ctypes.c_void_p,  # a path; the file keeps this very pointer
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Vfs), ctypes.c_char_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)

_Vfs._fields_ = [
    ("iVersion", ctypes.c_int),
    ("szOsFile", ctypes.c_int),
    ("mxPathname", ctypes.c_int),
    ("pNext", ctypes.c_void_p),
    ("zName", ctypes.c_char_p),
    ("pAppData", ctypes.c_void_p),
    ("xOpen", _OPEN),
    ("xDelete", _DELETE),
    ("others", ctypes.c_void_p * 14),
]


class _Methods(ctypes.Structure):
    """An open file, which begins with a pointer to its methods."""

    _fields_ = [
        ("iVersion", ctypes.c_int),
        ("xClose", ctypes.c_void_p),
        ("xRead", ctypes.c_void_p),
        ("xWrite", _WRITE),
        ("xTruncate", _TRUNCATE),
        ("xSync", _SYNC),
        ("others", ctypes.c_void_p * 13),
    ]


class _Library:
    """The functions of SQLite that register a VFS.

    Raises:
        SystemExit: this Python hides them, for example because SQLite is linked statically.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))  # None = built into Python
        try:
            self.find = library.sqlite3_vfs_find
            self.register = library.sqlite3_vfs_register
            self.unregister = library.sqlite3_vfs_unregister
        except AttributeError:
            raise SystemExit("this Python hides SQLite's functions: try the system's") from None
        self.find.restype = ctypes.POINTER(_Vfs)
        self.find.argtypes = [ctypes.c_char_p]
        self.register.argtypes = [ctypes.POINTER(_Vfs), ctypes.c_int]
        self.unregister.argtypes = [ctypes.POINTER(_Vfs)]


class _WatchedVfs:
    """A VFS that forwards all calls to the default one and reports changes before they are made."""

    def __init__(self, usual: _Vfs, watch: Watch) -> None:
        self._usual = usual
        self._watch = watch
        self._names: dict[int, str] = {}
        self._methods: dict[int, _Methods] = {}
        self.vfs = _Vfs.from_buffer_copy(usual)
        self.vfs.pNext = None
        self.vfs.zName = b"watched"
        self.vfs.xOpen = _OPEN(self._open)
        self.vfs.xDelete = _DELETE(self._delete)

    def forget(self) -> None:
        """Breaks the reference cycles of its functions."""
        self._methods.clear()
        self.vfs = _Vfs()

    def _open(self, vfs: object, path: int | None, file: int, flags: int, result: object) -> int:
        if path is not None:
            name = Path(ctypes.string_at(path).decode()).name
            if code := self._watch(FileChange(Kind.OPEN, name)):
                return code
            self._names[file] = name
        code = self._usual.xOpen(ctypes.byref(self._usual), path, file, flags, result)
        pointer = ctypes.c_void_p.from_address(file)
        if code == _OK and path is not None and pointer.value:
            pointer.value = ctypes.addressof(self._watched_methods(pointer.value))
        return int(code)

    def _delete(self, vfs: object, path: bytes, sync_directory: int) -> int:
        change = FileChange(Kind.DELETE, Path(path.decode()).name, is_durable=bool(sync_directory))
        return self._watch(change) or int(
            self._usual.xDelete(ctypes.byref(self._usual), path, sync_directory)
        )

    def _watched_methods(self, address: int) -> _Methods:
        if address in self._methods:
            return self._methods[address]
        usual = _Methods.from_address(address)
        assert usual.iVersion >= _VERSION_OF_SHARED_MEMORY
        methods = _Methods.from_buffer_copy(usual)

        def write(file: int, data: int, size: int, offset: int) -> int:
            change = FileChange(Kind.WRITE, self._names[file], offset, ctypes.string_at(data, size))
            return self._watch(change) or int(usual.xWrite(file, data, size, offset))

        def truncate(file: int, size: int) -> int:
            change = FileChange(Kind.TRUNCATE, self._names[file], size)
            return self._watch(change) or int(usual.xTruncate(file, size))

        def sync(file: int, flags: int) -> int:
            change = FileChange(Kind.SYNC, self._names[file])
            return self._watch(change) or int(usual.xSync(file, flags))

        methods.xWrite = _WRITE(write)
        methods.xTruncate = _TRUNCATE(truncate)
        methods.xSync = _SYNC(sync)
        self._methods[address] = methods
        return methods


@contextmanager
def watched_files(watch: Watch) -> Iterator[None]:
    """Observes all files that this process opens with sqlite3 until the end of the block. They must
    be closed before it, because SQLite then no longer points to the layer."""
    library = _Library()
    vfs = _WatchedVfs(library.find(None).contents, watch)
    library.register(ctypes.byref(vfs.vfs), 1)
    try:
        yield
    finally:
        library.unregister(ctypes.byref(vfs.vfs))
        vfs.forget()
