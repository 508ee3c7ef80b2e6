"""The state store in a PostgreSQL database."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import psycopg
from psycopg import errors

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.parts.postgres.schema import (
    OF_COMMANDS,
    OF_SERVERS,
    MissingTables,
    PostgresSession,
    SharedTables,
    TimeLimits,
    check_tables,
    make_tables,
    open_session,
)
from fastovms.parts.postgres.server_address import ServerAddress
from fastovms.state.database import (
    DatabaseUnavailable,
    Operation,
    OperationOutcome,
    SqlDatabase,
    StateBounds,
)
from fastovms.state.operations import Operations
from fastovms.state.running_responses import ONLY_REPLICA, Replica
from fastovms.state.tables import Clock, Shares, Totals, total_of

logger = logging.getLogger(__name__)

_FIRST_DELAY: Final = 0.25
_MAX_DELAY: Final = 2.0
"""The maximum seconds between two connection attempts; each delay is about twice the previous one.
A server must reconnect before its leases expire, a few seconds after they would be renewed."""


def _log_trouble(reason: str) -> None:
    logger.warning("response store: responses are not stored: %s", reason)


class DatabaseLink:
    """Opens connections to one database. After a failure, callers get an error immediately until
    the next attempt is due.

    Args:
        clock: returns monotonic seconds.
        prepare: creates or checks the tables on a new connection.
        warn: called with the reason why the database cannot be reached, when the reason changes.

    Attributes:
        trouble: the reason why the database cannot be reached; "" = it is available.
        num_connects: the number of opened connections.
        totals: the totals of the state at the last check.
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
        """Opens a connection to a database that has the tables. Raises DatabaseUnavailable if that
        fails, or, without an attempt, if the next attempt is not due yet."""
        if self.trouble:
            raise DatabaseUnavailable(self.trouble)
        return self._open()

    def try_again(self) -> PostgresSession | None:
        """Opens a connection after a failure, if an attempt is due and no other thread makes one;
        None = still not connected."""
        if self.seconds_left() or not self._attempt.acquire(blocking=False):
            return None
        try:
            return self._open()
        except DatabaseUnavailable:
            return None
        finally:
            self._attempt.release()

    def seconds_left(self) -> float:
        """Returns the seconds until the next attempt is due; 0 = now."""
        return max(0.0, self._due_at - self._clock())

    def add(self, growth: Totals) -> None:
        """Adds the changes of a transaction to the totals."""
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
        except DatabaseUnavailable as error:
            self._note(str(error))
            raise
        except (StateFailed, psycopg.Error) as error:
            reason = " ".join(str(error).split())
            self._note(reason)
            raise DatabaseUnavailable(reason) from None
        with self._changed:
            self.num_connects += 1
            if self.trouble:
                logger.warning("response store: %s is reachable again", self._address)
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


@contextmanager
def open_url(
    address: ServerAddress, bounds: StateBounds, *, must_exist: bool = False
) -> Iterator[PostgresDatabase]:
    """Opens the database, and creates missing tables unless `must_exist` is set. Raises
    ConfigurationError if `must_exist` is set and the database has no tables; StateFailed, also
    within the context, if the database cannot be read or written."""
    link = DatabaseLink(
        address,
        limits=OF_COMMANDS,
        prepare=check_tables if must_exist else make_tables,
        warn=lambda reason: None,
    )
    database = PostgresDatabase(link, bounds, time.time)
    try:
        database.connect()
        yield database
    except MissingTables as error:
        raise ConfigurationError(f"{address} has no stored state: {error}") from None
    except (DatabaseUnavailable, ConnectionLost, psycopg.Error) as error:
        raise StateFailed(f"{address}: {' '.join(str(error).split())}") from None
    finally:
        database.close()


EVICTION_LOCK: Final = 0x6661_7374_0002
"""The number of the advisory lock that is held by the only server that evicts."""

_MAX_ATTEMPTS: Final = 5
"""The maximum number of attempts at an operation that conflicts with another server's."""

_IN_THE_WAY: Final = (errors.DeadlockDetected, errors.SerializationFailure)

_PAUSE: Final = 0.05
"""Seconds before the first retry of a conflicting operation; each further delay is longer by as
much."""

_MIN_WAIT: Final = 0.05
"""The minimum seconds between two checks whether the database can be reached."""


class CommitUnknown(DatabaseUnavailable):
    """Raised if the connection was lost during a commit, so that it is unknown whether the changes
    were stored."""


class ConnectionLost(StateFailed):
    """Raised if the connection was lost and nothing was committed."""


class _Connected(NamedTuple):
    """A session and its tables."""

    session: PostgresSession
    tables: SharedTables
    operations: Operations


class PostgresDatabase(SqlDatabase[SharedTables]):
    """Implements `SqlDatabase` on its own connection.

    Args:
        link: opens connections; shared with other threads.
        replica: the identity of this process in the database.
        only_reads: whether all operations are read-only; they then see a consistent snapshot and do
            not wait for writers.
    """

    driver_errors = (psycopg.Error, ConnectionLost)
    max_evicted = 128
    # Other replicas write to the same state, so maintenance may be needed at any time.
    min_wait, max_wait = 1.0, 30.0

    def __init__(
        self,
        link: DatabaseLink,
        bounds: StateBounds,
        clock: Clock,
        *,
        replica: Replica = ONLY_REPLICA,
        only_reads: bool = False,
    ) -> None:
        super().__init__(bounds, clock, only_reads=only_reads)
        self._link = link
        self._replica = replica
        self._connected: _Connected | None = None

    @property
    def is_on_disk(self) -> bool:
        return not self._link.trouble

    @property
    def totals(self) -> Totals:
        return self._link.totals

    @property
    def trouble(self) -> str:
        trouble = self._link.trouble
        return f"responses are not stored: {trouble}" if trouble else ""

    def connect(self) -> _Connected:
        """Returns the open connection, or a new one. Raises DatabaseUnavailable if the database
        cannot be reached."""
        if self._connected is None:
            self._use(self._link.connect())
        assert self._connected is not None
        return self._connected

    def do_maintenance(self) -> float:
        """Reconnects if an attempt is due, then does the base class's maintenance. Returns the
        seconds until the next maintenance is due."""
        try:
            if not self._link.trouble or self._connect_again():
                return super().do_maintenance()
        except DatabaseUnavailable:
            pass
        return max(_MIN_WAIT, self._link.seconds_left())

    @contextmanager
    def transaction(self, *, only_reads: bool = False) -> Iterator[SharedTables]:
        """Runs a transaction, which is committed at the end of the context, or rolled back after an
        error.

        Raises:
            DatabaseUnavailable: no connection is available; or it was lost during the commit, and
                it is unknown whether anything was stored.
            ConnectionLost: the connection was lost and nothing was stored.
        """
        session, tables, _ = self.connect()
        tables.begin()
        try:
            session.begin(only_reads=only_reads)
            yield tables
            tables.write_growth()
            tables.send_notifications()
        except BaseException as error:
            session.rollback()
            if isinstance(error, errors.ReadOnlySqlTransaction):
                session.close()  # another server is the primary now
            if session.is_lost:
                self._disconnect()
                if isinstance(error, psycopg.Error):
                    raise ConnectionLost(_reason(error)) from error
            raise
        try:
            session.commit()
        except psycopg.Error as error:
            session.rollback()
            if not session.is_lost:
                raise
            self._disconnect()
            if only_reads:
                raise ConnectionLost(_reason(error)) from error
            raise CommitUnknown(
                "the connection to the database was lost during a commit: it is unknown "
                "whether the changes were stored"
            ) from error
        self._link.add(total_of(tables.growth))

    def close(self) -> None:
        self._disconnect()

    def _transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        for number in range(1, _MAX_ATTEMPTS):
            try:
                return super()._transact(operations)
            except ConnectionLost:
                if number > 1:
                    raise
            except _IN_THE_WAY:
                if len(operations) > 1:
                    raise
                # Let the other transaction finish first, or both would conflict again.
                time.sleep(random.uniform(0.5, 1.0) * _PAUSE * number)
        return super()._transact(operations)

    def _run(self, operation: Operation) -> OperationOutcome:
        try:
            return OperationOutcome(operation(self.connect().operations))
        except psycopg.Error:
            raise
        except Exception as error:
            if not self._only_reads:
                raise  # a failed write may have been committed
            return OperationOutcome(error=error)

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, CommitUnknown):
            return error
        if isinstance(error, DatabaseUnavailable):
            # libpq's message has the database's address, which only the log may show.
            return StateFailed("the state is not available: the connection to its database is lost")
        if isinstance(error, self.driver_errors):
            return StateFailed(f"the state cannot be read or written: {_reason(error)}")
        return error

    def _reason(self, error: Exception) -> str:
        return _reason(error)

    def _has_turn(self, tables: SharedTables) -> bool:
        [has_turn] = tables.execute(
            "SELECT pg_try_advisory_xact_lock(?)", (EVICTION_LOCK,)
        ).fetchone()
        return bool(has_turn)

    def _count(self, tables: SharedTables) -> Totals:
        self._link.totals = totals = tables.server_totals()
        return totals

    def _shares_of(self, tables: SharedTables) -> Shares:
        return tables.sum_shares()

    def _connect_again(self) -> bool:
        """Tries to reconnect. Returns whether the database is available."""
        session = self._link.try_again()
        if session is not None:
            self._disconnect()
            self._use(session)
        return session is not None

    def _use(self, session: PostgresSession) -> None:
        self.tables = tables = SharedTables(session, self._clock, self._bounds.max_bytes)
        operations = Operations(tables, self._replica, tables.notify)
        self._connected = _Connected(session, tables, operations)

    def _disconnect(self) -> None:
        if self._connected is not None:
            self._connected.session.close()
        self.tables = self._connected = None


def _reason(error: Exception) -> str:
    """Returns the server's error message without the details that quote stored data."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or " ".join(str(error).split())
