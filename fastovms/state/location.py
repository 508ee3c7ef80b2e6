"""Where the state is kept, and that no other process keeps its own there."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from fastovms.config import StateConfig
from fastovms.errors import ConfigurationError
from fastovms.state.database import Bounds, Database, primary_code
from fastovms.state.sqlite_store import SqliteStore
from fastovms.state.tables import Clock

logger = logging.getLogger(__name__)

IN_MEMORY: Final = ":memory:"
_FILE: Final = "state.db"
_DAMAGED: Final = ".damaged"


_FAULTS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_SQLITE_FAULTS: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class _Unusable(Exception):
    """The directory cannot be used. The text says why.

    Attributes:
        is_fault: of the disk, rather than of whoever chose it.
    """

    def __init__(self, reason: str, *, is_fault: bool = False) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


def open_store(config: StateConfig, environ: Mapping[str, str], clock: Clock) -> SqliteStore | None:
    """The store that the operator chose; None = nothing is to be kept.

    Where nobody chose a directory and the usual one cannot be had, as when another server uses it,
    or where the disk is full or broken, the state is kept in memory, with a warning.

    Raises:
        ConfigurationError: the directory that was chosen cannot be used.
    """
    if not config.enable_store:
        return None
    bounds = Bounds(config.max_age, config.max_objects, config.max_bytes)
    if config.state_dir == IN_MEMORY:
        return SqliteStore(Database(IN_MEMORY, bounds, clock))
    directory = Path(config.state_dir or default_directory(environ))
    try:
        return SqliteStore(_open_file(directory, bounds, clock))
    except _Unusable as error:
        if config.state_dir is not None and not error.is_fault:
            raise ConfigurationError(f"cannot keep the state in {directory}: {error}") from None
        logger.warning(
            "responses are kept in memory, until the server ends: %s: %s (choose a place with "
            "--state-dir)",
            directory,
            error,
        )
        return SqliteStore(Database(IN_MEMORY, bounds, clock))


def default_directory(environ: Mapping[str, str]) -> Path:
    """systemd's, else the user's (XDG Base Directory Specification)."""
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    base = environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = f"{environ.get('HOME') or '/nonexistent'}/.local/state"
    return Path(base, "fastovms")


def _open_file(directory: Path, bounds: Bounds, clock: Clock) -> Database:
    """Raises _Unusable."""
    with _faults_told():
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        unlock = partial(os.close, _lock(directory / f"{_FILE}.lock"))
        try:
            return _open_database(directory / _FILE, bounds, clock, unlock)
        except BaseException:
            unlock()
            raise


@contextmanager
def _faults_told() -> Iterator[None]:
    """Raises _Unusable in place of what the system and SQLite raise."""
    try:
        yield
    except OSError as error:
        is_fault = error.errno in _FAULTS
        raise _Unusable(error.strerror or str(error), is_fault=is_fault) from None
    except sqlite3.Error as error:
        raise _Unusable(str(error), is_fault=primary_code(error) in _SQLITE_FAULTS) from None


def _lock(path: Path) -> int:
    """A descriptor that holds the lock as long as it is open, whatever ends the process.

    Raises:
        _Unusable: another process has the lock.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise _Unusable("another server uses it") from None
    return lock


def _open_database(
    path: Path, bounds: Bounds, clock: Clock, on_close: Callable[[], None]
) -> Database:
    """A file that is no database is set aside: a box must serve again after its disk has failed.
    So is one that turns out to be damaged later, for the next start to begin a new one.

    Raises:
        OSError: the file cannot be had.
        sqlite3.Error: it cannot be read, or is of another version.
    """

    def open_it() -> Database:
        path.touch(mode=0o600)  # SQLite gives its other files the same permissions
        return Database(str(path), bounds, clock, on_close, partial(_set_aside, path))

    try:
        return open_it()
    except (sqlite3.OperationalError, sqlite3.NotSupportedError):
        raise
    except sqlite3.DatabaseError as error:
        _set_aside(path, error)
        return open_it()


def _set_aside(path: Path, error: sqlite3.Error) -> None:
    """Whoever has the files open keeps them."""
    logger.error(
        "%s is damaged (%s): it is now %s%s, and a server that starts begins a new one",
        path,
        error,
        path.name,
        _DAMAGED,
    )
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(f"{path.name}{suffix}")
        try:
            file.replace(file.with_name(f"{path.name}{_DAMAGED}{suffix}"))
        except FileNotFoundError:
            continue
