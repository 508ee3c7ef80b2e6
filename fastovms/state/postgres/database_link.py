"""Holds what the threads of one server share about the database: whether it can be reached, and how
much it keeps."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg

from fastovms.errors import StateFailed
from fastovms.state.postgres.postgres_connection import (
    OF_SERVERS,
    PostgresSession,
    TimeLimits,
    Unreachable,
    open_session,
)
from fastovms.state.postgres.postgres_schema import make_tables
from fastovms.state.postgres.server_address import ServerAddress
from fastovms.state.tables import Totals

logger = logging.getLogger(__name__)

_FIRST_DELAY: Final = 0.25
_MAX_DELAY: Final = 2.0
"""The most seconds between two attempts; each delay is about twice the one before. A server must be
back before its leases expire, which they do some seconds after others are."""


def _log_trouble(reason: str) -> None:
    logger.warning("responses are not stored: %s", reason)


class DatabaseLink:
    """Opens connections to one database. When one cannot be opened, the next attempt comes later,
    and until then whoever wants one is told so at once.

    Args:
        clock: tells seconds that only grow.
        prepare: makes or checks the tables over a new connection.
        warn: is told why the database cannot be reached, whenever the reason changes.

    Attributes:
        trouble: why the database cannot be reached; "" = it can.
        num_connects: how often a connection was opened.
        totals: what is kept, as of the last look.
    """

    def __init__(
        self,
        address: ServerAddress,
        clock: Callable[[], float] = time.monotonic,
        limits: TimeLimits = OF_SERVERS,
        prepare: Callable[[PostgresSession], None] = make_tables,
        warn: Callable[[str], None] = _log_trouble,
    ) -> None:
        self._address = address
        self._limits = limits
        self._prepare = prepare
        self._warn = warn
        self._clock = clock
        self._attempt = threading.Lock()
        self._changed = threading.Lock()
        self._delay = _FIRST_DELAY
        self._due_at = clock()
        self.trouble = ""
        self.num_connects = 0
        self.totals = Totals()

    def connect(self) -> PostgresSession:
        """Opens a connection to a database that has the tables. While it is known that none can be
        had, this fails at once.

        Raises:
            Unreachable: it cannot be had.
        """
        if self.trouble:
            raise Unreachable(self.trouble)
        return self._open()

    def try_again(self) -> PostgresSession | None:
        """Opens a connection after a failure, if an attempt is due and no other thread makes it;
        None = there still is none."""
        if self.seconds_left() or not self._attempt.acquire(blocking=False):
            return None
        try:
            return self._open()
        except Unreachable:
            return None
        finally:
            self._attempt.release()

    def seconds_left(self) -> float:
        """Returns the seconds until the next attempt is due; 0 = it is."""
        return max(0.0, self._due_at - self._clock())

    def add(self, growth: Totals) -> None:
        """Counts what a transaction has added, until the next look."""
        with self._changed:
            self.totals = self.totals.plus(*growth)

    def _open(self) -> PostgresSession:
        try:
            session = open_session(self._address.connection_parameters(), self._limits)
            try:
                self._prepare(session)
            except BaseException:
                session.close()
                raise
        except Unreachable as error:
            self._note(str(error))
            raise
        except (StateFailed, psycopg.Error) as error:
            reason = " ".join(str(error).split())
            self._note(reason)
            raise Unreachable(reason) from None
        with self._changed:
            self.num_connects += 1
            if self.trouble:
                logger.warning("%s can be reached again", self._address)
            self.trouble = ""
            self._delay = _FIRST_DELAY
        return session

    def _note(self, reason: str) -> None:
        with self._changed:
            if reason != self.trouble:
                self._warn(f"{self._address}: {reason}")
            self.trouble = reason
            # Servers that lost the same database do not all come back at the same moment.
            self._due_at = self._clock() + self._delay * random.uniform(0.5, 1.0)
            self._delay = min(2 * self._delay, _MAX_DELAY)
