"""Opens the SQLite file in the operator's directory."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from fastovms.errors import ConfigurationError, StateNotLoaded, description_of
from fastovms.server_config import StateConfig
from fastovms.state.database import Operation, OperationOutcome, StateBounds
from fastovms.state.sqlite.database import IN_MEMORY, Database, UnusableFile
from fastovms.state.state_store import StateDatabase
from fastovms.state.tables import Clock, Totals
from fastovms.system.disk import (
    check_file,
    lock_file,
    open_file,
    private_directory,
    state_directory,
)

logger = logging.getLogger(__name__)


_FIRST_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
"""The maximum seconds between two attempts; each delay is twice the previous one."""


class AwaitedFile:
    """Implements `StateDatabase` for a file that is not available yet. Opening is retried at
    growing intervals; until then operations fail with StateNotLoaded.

    Args:
        open_file: opens the file; raises UnusableFile.
        reason: why the file was not available at first.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        open_file: Callable[[], Database],
        reason: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_file = open_file
        self._reason = reason
        self._clock = clock
        self._delay = _FIRST_DELAY
        self._due_at = clock() + self._delay
        self._database: Database | None = None

    @property
    def is_on_disk(self) -> bool:
        return self._database is not None

    @property
    def totals(self) -> Totals:
        return Totals() if self._database is None else self._database.totals

    @property
    def trouble(self) -> str:
        return "" if self.is_on_disk else f"responses are not stored: {self._reason}"

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        if self._database is not None:
            return self._database.transact(operations)
        error = StateNotLoaded(f"the stored data cannot be read yet: {self._reason}")
        return [OperationOutcome(error=error) for _ in operations]

    def do_maintenance(self) -> float:
        """Tries to open the file if an attempt is due. Once it is open, does the same as
        `Database.do_maintenance`."""
        if self._database is None and self._clock() >= self._due_at:
            self._attempt()
        if self._database is not None:
            return self._database.do_maintenance()
        return max(0.0, self._due_at - self._clock())

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _attempt(self) -> None:
        try:
            self._database = self._open_file()
            logger.warning(
                "response store: the state file is open; responses are stored on disk from now on"
            )
        except Exception as error:
            reason = str(error) if isinstance(error, UnusableFile) else description_of(error)
            if reason != self._reason:
                logger.warning("response store: responses are still not stored: %s", reason)
            self._reason = reason
            self._delay = min(2 * self._delay, _MAX_DELAY)
            self._due_at = self._clock() + self._delay


STATE_FILE: Final = "state.db"
_DAMAGED: Final = ".damaged"

_NO_FILE: Final = (errno.ELOOP, errno.EINVAL)
"""The errors of `system.disk` for a link or a pipe instead of a file."""

_WRONG_CHOICES: Final = (
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
)
"""The errors of the system for a path that can never be a directory. All other errors may be
temporary, such as a full, read-only or unmounted disk."""


def open_location(
    config: StateConfig, bounds: StateBounds, environ: Mapping[str, str], clock: Clock
) -> StateDatabase:
    """Returns the state database in the directory that the operator chose.

    If a chosen directory is not available (used by another server, or its disk is full, read-only
    or broken), the database waits for it; so does a default directory that may hold a state. Any
    other default directory that is not available is replaced by a database in memory. Raises
    ConfigurationError if `--state-dir` is unusable, is used by another server, or has a state of
    another version.
    """
    if config.state_dir == IN_MEMORY:
        return Database(IN_MEMORY, bounds, clock)
    directory = Path(config.state_dir or state_directory(environ))
    open_file = partial(open_directory, directory, bounds, clock)
    try:
        return open_file()
    except UnusableFile as error:
        if config.state_dir is not None and not error.is_fault:
            raise ConfigurationError(f"cannot keep the state in {directory}: {error}") from None
        is_chosen = config.state_dir is not None or "STATE_DIRECTORY" in environ
        if is_chosen or (error.is_fault and _may_exist(directory / STATE_FILE)):
            logger.warning(
                "response store: responses are not stored until %s can be used: %s (choose another "
                "directory with --state-dir)",
                directory,
                error,
            )
            return AwaitedFile(open_file, str(error))
        logger.warning(
            "response store: responses are kept in memory and lost when the server ends: %s cannot "
            "be used: %s (choose another directory with --state-dir)",
            directory,
            error,
        )
        return Database(IN_MEMORY, bounds, clock)


def _may_exist(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def open_directory(
    directory: Path, bounds: StateBounds, clock: Clock, *, sets_aside: bool = True
) -> Database:
    """Opens the database in a directory, and locks the directory. Raises UnusableFile if the file
    is not available.

    Args:
        sets_aside: whether a corrupt file is renamed and replaced, so that the server can start
            after a disk failure. A file that is found to be corrupt later is renamed too, and the
            next start creates a new one.
    """
    path = directory / STATE_FILE
    with _faults_converted():
        private_directory(directory, may_be_link=True)
        unlock = partial(os.close, lock_file(path.with_name(f"{path.name}.lock")))
        on_damage = partial(_try_to_set_aside, path) if sets_aside else lambda error: None
        try:
            try:
                return _open_database(path, bounds, clock, unlock, on_damage)
            except (sqlite3.OperationalError, sqlite3.NotSupportedError):
                raise
            except sqlite3.DatabaseError as error:
                if not sets_aside:
                    raise
                _set_aside(path, error)
                return _open_database(path, bounds, clock, unlock, on_damage)
        except BaseException:
            unlock()
            raise


@contextmanager
def _faults_converted() -> Iterator[None]:
    """Converts OSError and sqlite3.Error within the context to UnusableFile."""
    try:
        yield
    except BlockingIOError:
        raise UnusableFile("another server uses it") from None
    except OSError as error:
        is_fault = error.errno not in _WRONG_CHOICES
        named = "" if error.errno not in _NO_FILE else f"{os.path.basename(error.filename)}: "
        raise UnusableFile(f"{named}{error.strerror or error}", is_fault=is_fault) from None
    except sqlite3.NotSupportedError as error:
        raise UnusableFile(str(error)) from None
    except sqlite3.Error as error:
        raise UnusableFile(str(error), is_fault=True) from None


def _open_database(
    path: Path,
    bounds: StateBounds,
    clock: Clock,
    on_close: Callable[[], None],
    on_damage: Callable[[sqlite3.Error], None],
) -> Database:
    for suffix in ("-wal", "-shm", "-journal"):
        check_file(path.with_name(f"{path.name}{suffix}"))
    # SQLite gives its other files the same permissions.
    os.close(open_file(path, os.O_RDWR | os.O_CREAT))
    return Database(str(path), bounds, clock, on_close, on_damage)


def _set_aside(path: Path, error: sqlite3.Error) -> None:
    """Renames the files of a corrupt database. Processes that have them open can still use them.
    Raises OSError if they cannot be renamed."""
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(f"{path.name}{suffix}")
        try:
            file.replace(file.with_name(f"{path.name}{_DAMAGED}{suffix}"))
        except FileNotFoundError:
            continue
    logger.error(
        "response store: %s is corrupt (%s); it was renamed to %s%s, and a new one is created",
        path,
        error,
        path.name,
        _DAMAGED,
    )


def _try_to_set_aside(path: Path, error: sqlite3.Error) -> None:
    try:
        _set_aside(path, error)
    except OSError as reason:
        logger.error(
            "response store: %s is corrupt (%s) and cannot be renamed: %s", path, error, reason
        )
