"""Opens connections to PostgreSQL: in which form values travel, how long an answer is waited for,
and what is kept in mind of a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import OperationalError

from fastovms.errors import StateFailed
from fastovms.state.sql import SqlCursor

_LOCK_TIMEOUT: Final = 5.0
"""Seconds that a statement waits for rows which another transaction changes."""

_HOUR: Final = 3600.0

T = TypeVar("T")


class TimeLimits(NamedTuple):
    """How many seconds a transaction is given.

    Attributes:
        statement: that the server may work on a statement.
        answer: that the server's answer is waited for: it, or what stands between, may hang.
        idle: after which the server ends a transaction whose client says nothing more, so that
            what it has locked is not locked for ever.
    """

    statement: float
    answer: float
    idle: float


OF_SERVERS: Final = TimeLimits(statement=8.0, answer=10.0, idle=15.0)

OF_COMMANDS: Final = TimeLimits(statement=_HOUR, answer=_HOUR + 2.0, idle=_HOUR)
"""A command counts all rows with one statement, and whoever reads what it prints may be slow."""


class Unreachable(StateFailed):
    """There is no connection to the database."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for no answer longer than `answer_timeout` seconds: it closes
    itself."""

    answer_timeout = OF_SERVERS.answer

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, timeout or self.answer_timeout)
        except OperationalError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.close()
            raise


class PostgresSession:
    """Implements `SqlConnection` on a connection to PostgreSQL."""

    def __init__(self, connection: PostgresConnection, limits: TimeLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._limit(limits)

    def _limit(self, limits: TimeLimits) -> None:
        self._connection.answer_timeout = limits.answer
        # `SET LOCAL` ends with the transaction, as PgBouncer needs it.
        self._set_limits = (
            f"SET LOCAL statement_timeout = {1000 * limits.statement:.0f}; "
            f"SET LOCAL lock_timeout = {1000 * _LOCK_TIMEOUT:.0f}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {1000 * limits.idle:.0f}"
        )

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Lets transactions that begin within a `with` statement take as long as those of
        commands."""
        self._limit(OF_COMMANDS)
        try:
            yield
        finally:
            self._limit(self._limits)

    @property
    def is_lost(self) -> bool:
        return self._connection.closed

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> SqlCursor:
        """Runs a statement, in which each ? stands for one of the values.

        Raises:
            psycopg.Error: the server refuses it, or is gone.
        """
        known = [_storable(value) for value in values]
        return self._connection.execute(_with_placeholders(sql), known, binary=True)

    def begin(self, *, only_reads: bool = False) -> None:
        """Begins a transaction. All statements of one that only reads see the same state."""
        mode = "REPEATABLE READ READ ONLY" if only_reads else "READ COMMITTED"
        self._connection.execute(f"BEGIN ISOLATION LEVEL {mode}; {self._set_limits}".encode())

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Ends the transaction, and the connection where even that fails."""
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        self._connection.close()


def open_session(parameters: Mapping[str, str], limits: TimeLimits = OF_SERVERS) -> PostgresSession:
    """Connects to the server.

    Raises:
        psycopg.Error: it cannot be reached, or refuses.
    """
    connection = PostgresConnection.connect(
        **parameters,  # type: ignore[arg-type]
        autocommit=True,
        prepare_threshold=None,  # PgBouncer gives the next transaction to another session
    )
    return PostgresSession(connection, limits)


def _storable(value: Any) -> Any:
    """Returns the value; of a text with U+0000, which PostgreSQL does not have, another one:
    nothing is kept under such an id, and nothing is found."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


@cache
def _with_placeholders(sql: str) -> str:
    """Returns a statement as psycopg has it. None of the state's has a ? or % in it otherwise."""
    return sql.replace("?", "%s")
