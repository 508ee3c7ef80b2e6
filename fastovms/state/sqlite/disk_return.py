"""Moves a state from memory to the disk, once its file can be had."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from typing import Final

from fastovms.errors import description_of
from fastovms.state.sqlite.database import Database

logger = logging.getLogger(__name__)

_FIRST_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
"""The most seconds between two attempts; each delay is twice the one before."""


class UnusableFile(Exception):
    """The file of the state cannot be had. The text says why.

    Attributes:
        is_fault: whether it is a fault of the disk, rather than of whoever chose the directory.
    """

    def __init__(self, reason: str, *, is_fault: bool = False) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


class DiskReturn:
    """Tries to open the file of the state again, at growing intervals, and moves what was kept in
    memory into it.

    Args:
        open_file: opens the file; raises UnusableFile.
        reason: why it cannot be had at first.
        clock: tells seconds that only grow.

    Attributes:
        reason: why it cannot be had as of the last attempt.
    """

    def __init__(
        self,
        open_file: Callable[[], Database],
        reason: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_file = open_file
        self._clock = clock
        self._delay = _FIRST_DELAY
        self._due_at = clock() + self._delay
        self.reason = reason

    def seconds_left(self) -> float:
        """Returns the seconds until the next attempt; 0 = it is due."""
        return max(0.0, self._due_at - self._clock())

    def attempt(self, memory: Database) -> Database | None:
        """Tries to open the file and to move into it everything that `memory` keeps. Returns the
        file, or None where that failed: then the next attempt comes later."""
        try:
            return self._move(memory)
        except (UnusableFile, sqlite3.Error) as error:
            self._note(str(error))
        except Exception as error:
            self._note(description_of(error))
        self._delay = min(2 * self._delay, _MAX_DELAY)
        self._due_at = self._clock() + self._delay
        return None

    def _move(self, memory: Database) -> Database:
        """Moves everything into the file. Whatever keeps it from there is raised, once the file is
        closed."""
        database = self._open_file()
        try:
            database.add_all(memory)
        except BaseException:
            database.close()
            raise
        logger.warning(
            "the state is kept on the disk from now on, with %d objects that were kept in memory",
            memory.totals.num_objects,
        )
        return database

    def _note(self, reason: str) -> None:
        if reason != self.reason:
            logger.warning("the state is still kept in memory: %s", reason)
        self.reason = reason
