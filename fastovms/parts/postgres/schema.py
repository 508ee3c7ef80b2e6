"""The tables of the state store in PostgreSQL, and sessions with the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import OperationalError

from fastovms.state.database import DatabaseUnavailable
from fastovms.state.schema import VERSION, statements, unsupported_version_text
from fastovms.state.tables import (
    Clock,
    RowLocks,
    Shares,
    SqlConnection,
    SqlCursor,
    Tables,
    Totals,
    total_of,
)

_LOCK_TIMEOUT: Final = 5.0
"""Seconds that a statement waits for rows that another transaction is changing."""

_HOUR: Final = 3600.0

T = TypeVar("T")


class TimeLimits(NamedTuple):
    """The time limits of transactions in seconds.

    Attributes:
        statement: the server's limit for a statement.
        answer: the client's limit for an answer, since the server or a proxy may hang.
        idle: the limit after which the server ends an idle transaction, to release its locks.
    """

    statement: float
    answer: float
    idle: float


OF_SERVERS: Final = TimeLimits(statement=8.0, answer=10.0, idle=15.0)

OF_COMMANDS: Final = TimeLimits(statement=_HOUR, answer=_HOUR + 2.0, idle=_HOUR)
"""The limits for commands: a command may count all rows with one statement, and the reader of its
output may be slow."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that closes itself if an answer takes longer than `answer_timeout` seconds."""

    answer_timeout = OF_SERVERS.answer

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Waits for an answer of the server, by default for `answer_timeout` seconds. Closes the
        connection if a statement still runs after an error."""
        try:
            return super().wait(gen, interval, timeout or self.answer_timeout)
        except OperationalError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.close()
            raise


class PostgresSession:
    """Implements `SqlConnection` with a PostgreSQL connection."""

    def __init__(self, connection: PostgresConnection, limits: TimeLimits) -> None:
        self._connection = connection
        connection.answer_timeout = limits.answer
        # `SET LOCAL` ends with the transaction, as PgBouncer needs it.
        self._set_limits = (
            f"SET LOCAL statement_timeout = {1000 * limits.statement:.0f}; "
            f"SET LOCAL lock_timeout = {1000 * _LOCK_TIMEOUT:.0f}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {1000 * limits.idle:.0f}"
        )

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed."""
        return self._connection.closed

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> SqlCursor:
        """Executes a statement, in which each ? is replaced by one of the values. Raises
        psycopg.Error if the server rejects the statement or the connection is lost."""
        # PostgreSQL has no U+0000: a text with it becomes one that matches no stored id.
        known = [v.replace("\0", "\ufffd") if isinstance(v, str) else v for v in values]
        return self._connection.execute(_with_placeholders(sql), known, binary=True)

    def begin(self, *, only_reads: bool = False) -> None:
        """Begins a transaction. All statements of a read-only transaction see the same snapshot."""
        mode = "REPEATABLE READ READ ONLY" if only_reads else "READ COMMITTED"
        self._connection.execute(f"BEGIN ISOLATION LEVEL {mode}; {self._set_limits}".encode())

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Rolls the transaction back; closes the connection if that fails."""
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        self._connection.close()


def open_session(parameters: Mapping[str, str], limits: TimeLimits = OF_SERVERS) -> PostgresSession:
    """Connects to the server. Raises psycopg.Error if the server cannot be reached or refuses the
    connection."""
    connection = PostgresConnection.connect(
        **parameters,  # type: ignore[arg-type]
        autocommit=True,
        prepare_threshold=None,  # PgBouncer may run each transaction in another session
    )
    return PostgresSession(connection, limits)


@cache
def _with_placeholders(sql: str) -> str:
    """Returns the statement with psycopg's placeholders. Statements must not have other ? or %
    characters."""
    return sql.replace("?", "%s")


MIGRATION_LOCK: Final = 0x6661_7374_0001
"""The number of the advisory lock under which one server at a time creates the tables."""

NUM_SLOTS: Final = 64
"""The number of rows over which the totals of all objects are distributed: this many transactions
can be committed concurrently."""

_TEXT: Final = 'text COLLATE "C"'
"""The type of text columns. Ids are compared by bytes, independently of the system's locale and its
updates."""

_HOT: Final = "WITH (fillfactor = 50)"
_KEY: Final = "bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"

_DIALECT: Final = {
    "small": "smallint",
    "integer": "integer",
    "big": "bigint",
    "table": "",
    "hot_table": _HOT,
    "keyed_table": "",
    "key": _KEY,
    "text": _TEXT,
    "blob": "bytea",
    "real": "double precision",
    # The order of insertion, by the name that SQLite has for it.
    "rowid": f"rowid {_KEY}, ",
    "by_rowid": ", rowid",
}

_SCHEMA: Final = (
    "CREATE TABLE state_version (version integer NOT NULL)",
    *statements(_DIALECT),
    "CREATE INDEX runs_by_owner ON runs (owner)",
    # Leases use the database's clock, because clocks of servers differ.
    """
    CREATE FUNCTION unix_time() RETURNS double precision LANGUAGE sql VOLATILE AS
    'SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)'
    """,
    # Sizes are added up in several slots, for all objects and for each tenant. A transaction adds
    # its changes to one slot: with a single row, transactions would wait for each other.
    f"""
    CREATE TABLE totals (
        slot integer PRIMARY KEY,
        num_objects bigint NOT NULL DEFAULT 0,
        num_bytes bigint NOT NULL DEFAULT 0
    ) {_HOT}
    """,
    f"INSERT INTO totals (slot) SELECT * FROM generate_series(0, {NUM_SLOTS - 1})",
    f"""
    CREATE TABLE shares (
        tenant {_TEXT} NOT NULL,
        slot integer NOT NULL,
        num_objects bigint NOT NULL,
        num_bytes bigint NOT NULL,
        PRIMARY KEY (tenant, slot)
    ) {_HOT}
    """,
    f"INSERT INTO state_version VALUES ({VERSION})",
)


class UnsupportedVersion(DatabaseUnavailable):
    """Raised if the tables have a version that this server does not support; the message names
    it."""


class MissingTables(DatabaseUnavailable):
    """Raised if the database has no tables of the state."""


def make_tables(session: PostgresSession) -> None:
    """Creates the tables in an empty database. If several servers start at the same time, one
    creates the tables and the others wait. Raises psycopg.Error if the server rejects a statement
    or the connection is lost; UnsupportedVersion if the tables have another version."""
    if _has_tables(session):
        return
    session.begin()
    try:
        session.execute("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
        if not _has_tables(session):
            for statement in _SCHEMA:
                session.execute(statement)
        session.commit()
    except BaseException:
        session.rollback()
        raise


def check_tables(session: PostgresSession) -> None:
    """Raises MissingTables if the database has no tables; UnsupportedVersion if the tables have
    another version."""
    if not _has_tables(session):
        raise MissingTables("the database has no tables of fastovms")


def _has_tables(session: PostgresSession) -> bool:
    """Returns whether the database has the tables. Raises UnsupportedVersion if they have another
    version."""
    # `to_regclass` is not used, because it may cache a table's absence within a transaction.
    [has_version] = session.execute(
        "SELECT EXISTS (SELECT FROM pg_tables WHERE tablename = 'state_version' "
        "AND schemaname = ANY (current_schemas(false)))"
    ).fetchone()
    if not has_version:
        return False
    [version] = session.execute("SELECT max(version) FROM state_version").fetchone()
    if version != VERSION:
        raise UnsupportedVersion(f"the database has the format {unsupported_version_text(version)}")
    return True


CHANNEL: Final = "fastovms"
"""The channel of all notifications; the payload is a topic of `watchers`."""


class SharedTables(Tables):
    """The tables in a PostgreSQL database. Totals are distributed over several slots, which are
    summed, so that transactions do not wait for each other."""

    locks = RowLocks(wait="FOR UPDATE", skip="FOR UPDATE SKIP LOCKED")

    def __init__(self, connection: SqlConnection, clock: Clock, max_object: int) -> None:
        super().__init__(connection, clock, max_object)
        self._topics: set[str] = set()

    def begin(self) -> None:
        """Discards the changes of totals from a previous transaction that was not committed."""
        self.growth = {}
        self._topics.clear()

    def notify(self, topic: str) -> None:
        """Notifies the watchers of a topic once the transaction is committed."""
        self._topics.add(topic)

    def send_notifications(self) -> None:
        """Sends the transaction's notifications; must be called before the commit."""
        if self._topics:
            self.execute(
                f"SELECT pg_notify('{CHANNEL}', topic) FROM unnest(CAST(? AS text[])) AS topic",
                (sorted(self._topics),),
            )

    def write_growth(self) -> None:
        """Adds the transaction's changes of totals to its slots. Must be called last, so that other
        transactions with the same slots wait only for the commit."""
        if not self.growth:
            return
        # Locks are always taken in this order, so that there is no deadlock.
        tenants = sorted(self.growth)
        columns = zip(*map(self.growth.__getitem__, tenants), strict=True)
        self._execute(
            "INSERT INTO shares (tenant, slot, num_objects, num_bytes) "
            f"SELECT tenant, mod(pg_backend_pid(), {NUM_SLOTS}), n, b FROM unnest("
            "CAST(? AS text[]), CAST(? AS bigint[]), CAST(? AS bigint[])) AS g (tenant, n, b) "
            "ON CONFLICT (tenant, slot) DO UPDATE SET "
            "num_objects = shares.num_objects + excluded.num_objects, "
            "num_bytes = shares.num_bytes + excluded.num_bytes",
            (tenants, *map(list, columns)),
        )
        self._execute(
            "UPDATE totals SET num_objects = num_objects + ?, num_bytes = num_bytes + ? "
            f"WHERE slot = mod(pg_backend_pid(), {NUM_SLOTS})",
            total_of(self.growth),
        )

    def server_totals(self) -> Totals:
        """Returns the totals of all servers together."""
        row = self._execute(
            "SELECT CAST(sum(num_objects) AS bigint), CAST(sum(num_bytes) AS bigint) FROM totals"
        ).fetchone()
        return Totals(*row)

    def sum_shares(self) -> Shares:
        """Returns the totals of each tenant."""
        rows = self._execute(
            "SELECT tenant, CAST(sum(num_objects) AS bigint), CAST(sum(num_bytes) AS bigint) "
            "FROM shares GROUP BY tenant"
        )
        shares = {tenant: Totals(*numbers) for tenant, *numbers in rows}
        return {tenant: share for tenant, share in shares.items() if share != Totals()}
