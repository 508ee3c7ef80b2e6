"""Opens connections to PostgreSQL: in which form values travel, how long an answer is waited for,
and what is kept in mind of a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import OperationalError

from fastovms.errors import StateFailed
from fastovms.state.sql import SqlCursor

_STATEMENT_TIMEOUT: Final = 8.0
"""Seconds that the server may work on a statement."""

_LOCK_TIMEOUT: Final = 5.0
"""Seconds that a statement waits for rows which another transaction changes."""

_ANSWER_TIMEOUT: Final = 10.0
"""Seconds that the server's answer is waited for: it, or what stands between, may hang."""

_IDLE_TIMEOUT: Final = 15.0
"""Seconds after which the server ends a transaction whose client says nothing more, so that what it
has locked is not locked for ever."""

# `SET LOCAL` ends with the transaction, as PgBouncer needs it.
_BEGIN: Final = (
    "BEGIN ISOLATION LEVEL {mode}; "
    f"SET LOCAL statement_timeout = {1000 * _STATEMENT_TIMEOUT:.0f}; "
    f"SET LOCAL lock_timeout = {1000 * _LOCK_TIMEOUT:.0f}; "
    f"SET LOCAL idle_in_transaction_session_timeout = {1000 * _IDLE_TIMEOUT:.0f}"
)
BEGIN: Final = _BEGIN.format(mode="READ COMMITTED")
BEGIN_READING: Final = _BEGIN.format(mode="REPEATABLE READ READ ONLY")
"""Begins a transaction all of whose statements see the same state."""

T = TypeVar("T")


class Unreachable(StateFailed):
    """There is no connection to the database."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for no answer longer than `_ANSWER_TIMEOUT`: it closes itself."""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, timeout or _ANSWER_TIMEOUT)
        except OperationalError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.close()
            raise


class PostgresSession:
    """Implements `SqlConnection` on a connection to PostgreSQL."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection

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
        self._connection.execute(BEGIN_READING if only_reads else BEGIN)

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


def open_session(parameters: Mapping[str, str]) -> PostgresSession:
    """Connects to the server.

    Raises:
        psycopg.Error: it cannot be reached, or refuses.
    """
    connection = PostgresConnection.connect(
        **parameters,  # type: ignore[arg-type]
        autocommit=True,
        prepare_threshold=None,  # PgBouncer gives the next transaction to another session
    )
    return PostgresSession(connection)


def _storable(value: Any) -> Any:
    """Returns the value; of a text with U+0000, which PostgreSQL does not have, another one:
    nothing is kept under such an id, and nothing is found."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


@cache
def _with_placeholders(sql: str) -> str:
    """Returns a statement as psycopg has it. None of the state's has a ? or % in it otherwise."""
    return sql.replace("?", "%s")
