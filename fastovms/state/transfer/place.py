"""Opens the place of a state that no server is asked about: a directory, or a PostgreSQL
database."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.state.postgres.server_address import extra_needed, read_address
from fastovms.state.sqlite.disk_return import UnusableFile
from fastovms.state.sqlite.location import STATE_FILE, open_directory
from fastovms.state.state_database import StateBounds
from fastovms.state.tables import Tables

_UNBOUNDED: Final = StateBounds(float("inf"), 2**63, 2**63)


class OpenState(Protocol):
    """A database whose rows can be copied."""

    def snapshot(self) -> AbstractContextManager[Tables]:
        """A transaction that only reads, and all of whose statements see the same state."""

    def transaction(self) -> AbstractContextManager[Tables]:
        """Commits what is done within it, or nothing where that raises."""

    def faults(self) -> Iterator[str]:
        """Yields what contradicts what. It reads everything."""


@contextmanager
def open_place(
    place: str, password_file: Path | None, environ: Mapping[str, str], *, must_exist: bool = True
) -> Iterator[OpenState]:
    """Opens a directory, which no server may use meanwhile, or the database of a URL, which servers
    may.

    Raises:
        ConfigurationError: there is no such place, or a server uses the directory.
        StateFailed: it cannot be read or written, then or within.
    """
    if "://" in place:
        with extra_needed():
            from fastovms.state.postgres.postgres_place import open_url
        address = read_address(place, password_file, environ)
        with open_url(address, _UNBOUNDED, must_exist=must_exist) as shared:
            yield shared
        return
    directory = Path(place)
    if must_exist and not (directory / STATE_FILE).exists():
        raise ConfigurationError(f"there is no state in {directory}: it has no {STATE_FILE}")
    try:
        database = open_directory(directory, _UNBOUNDED, time.time, sets_aside=False)
    except UnusableFile as error:
        if error.is_fault:
            raise StateFailed(f"{directory}: {error}") from None
        raise ConfigurationError(f"cannot use the state in {directory}: {error}") from None
    try:
        yield database
    except sqlite3.Error as error:
        raise StateFailed(f"{directory}: {error}") from None
    finally:
        database.close()
