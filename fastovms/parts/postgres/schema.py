"""The schema of the store in PostgreSQL, and the connection to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import OperationalError

from fastovms.errors import StateFailed
from fastovms.state.tables import (
    VERSION,
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
"""Seconds that a statement waits for rows which another transaction changes."""

_HOUR: Final = 3600.0

T = TypeVar("T")


class TimeLimits(NamedTuple):
    """The seconds that a transaction may take.

    Attributes:
        statement: the limit for a statement on the server.
        answer: the limit for waiting for an answer, since the server or a proxy may hang.
        idle: the limit after which the server ends an idle transaction, so that its locks are
            released.
    """

    statement: float
    answer: float
    idle: float


OF_SERVERS: Final = TimeLimits(statement=8.0, answer=10.0, idle=15.0)

OF_COMMANDS: Final = TimeLimits(statement=_HOUR, answer=_HOUR + 2.0, idle=_HOUR)
"""A command counts all rows with one statement, and the reader of its output may be slow."""


class Unreachable(StateFailed):
    """The connection to the database is missing."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that closes itself if an answer takes longer than `answer_timeout` seconds."""

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
        """While the context is open, transactions have the longer time limits of commands."""
        self._limit(OF_COMMANDS)
        try:
            yield
        finally:
            self._limit(self._limits)

    @property
    def is_lost(self) -> bool:
        return self._connection.closed

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> SqlCursor:
        """Runs a statement, in which each ? is replaced by one of the values. Raises psycopg.Error
        if the server refuses the statement, or the connection is lost."""
        known = [_storable(value) for value in values]
        return self._connection.execute(_with_placeholders(sql), known, binary=True)

    def begin(self, *, only_reads: bool = False) -> None:
        """Begins a transaction. All statements of a read-only one see the same snapshot."""
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
    """Connects to the server. Raises psycopg.Error if the server cannot be reached, or refuses the
    connection."""
    connection = PostgresConnection.connect(
        **parameters,  # type: ignore[arg-type]
        autocommit=True,
        prepare_threshold=None,  # PgBouncer gives the next transaction to another session
    )
    return PostgresSession(connection, limits)


def _storable(value: Any) -> Any:
    """Returns the value for PostgreSQL. Text with U+0000, which PostgreSQL does not support, is
    replaced by a text that matches no stored id."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


@cache
def _with_placeholders(sql: str) -> str:
    """Converts a statement's placeholders to psycopg's. Statements must have no other ? or %."""
    return sql.replace("?", "%s")


MIGRATION_LOCK: Final = 0x6661_7374_0001
"""The number of the advisory lock under which one server at a time makes the tables."""

NUM_SLOTS: Final = 64
"""How many rows share the count of all objects: as many transactions may end at the same time."""

_RESUMPTION: Final = (
    "ALTER TABLE runs ADD COLUMN model text COLLATE \"C\" NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN attempts integer NOT NULL DEFAULT 0",
    "ALTER TABLE event_packs ADD COLUMN outputs bytea",
    # Not a column of `runs`, whose rows are written anew with each renewal of a lease.
    """
    CREATE TABLE jobs (
        object bigint PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
        job bytea NOT NULL
    )
    """,
)
"""The data for resuming a response whose server has ended: the model, the request, and the output
so far. A response without a model cannot be resumed. Servers of version 3 that are connected may go
on: what they do not name has a default."""

COUNT_SHARES: Final = (
    "DELETE FROM shares",
    "INSERT INTO shares SELECT tenant, 0, count(*), sum(size) FROM objects GROUP BY tenant",
)
"""Counts the objects of each tenant again."""

_SHARES: Final = (
    # As many rows for each tenant as `totals` has for all, for the same reason.
    """
    CREATE TABLE IF NOT EXISTS shares (
        tenant text COLLATE "C" NOT NULL,
        slot integer NOT NULL,
        num_objects bigint NOT NULL,
        num_bytes bigint NOT NULL,
        PRIMARY KEY (tenant, slot)
    ) WITH (fillfactor = 50)
    """,
    "CREATE INDEX IF NOT EXISTS objects_by_tenant ON objects (tenant, used_at) WHERE progress <> 0",
    *COUNT_SHARES,
)
"""The totals of each tenant, and an index that finds its least recently used objects. Older servers
of this version have neither, and may use the database at the same time: they write only `totals`,
and the server that evicts counts again if the two differ."""

_OLDEST: Final = 3
"""The first version that there was in PostgreSQL."""

_SCHEMA: Final = (
    "CREATE TABLE state_version (version integer NOT NULL)",
    # Ids are compared by their bytes, whatever order of words the system has, today or after an
    # update.
    """
    CREATE TABLE objects (
        key bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        tenant text COLLATE "C" NOT NULL,
        kind smallint NOT NULL,
        id text COLLATE "C" NOT NULL,
        progress smallint NOT NULL,
        previous_id text COLLATE "C",
        body bytea NOT NULL,
        events bytea,
        size bigint NOT NULL,
        used_at double precision NOT NULL,
        UNIQUE (tenant, kind, id)
    )
    """,
    "CREATE INDEX objects_by_use ON objects (used_at) WHERE progress <> 0",
    # `rowid` is what SQLite calls it: the order in which rows were added.
    """
    CREATE TABLE items (
        rowid bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        object bigint NOT NULL REFERENCES objects ON DELETE CASCADE,
        position integer NOT NULL,
        side smallint NOT NULL,
        id text COLLATE "C" NOT NULL,
        body bytea NOT NULL,
        UNIQUE (object, position)
    )
    """,
    "CREATE INDEX items_by_id ON items (id, rowid)",
    """
    CREATE TABLE runs (
        object bigint PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
        owner text COLLATE "C" NOT NULL,
        lease_until double precision NOT NULL,
        cancel_requested smallint NOT NULL
    ) WITH (fillfactor = 50)
    """,
    "CREATE INDEX runs_by_owner ON runs (owner)",
    """
    CREATE TABLE event_packs (
        object bigint NOT NULL REFERENCES objects ON DELETE CASCADE,
        first bigint NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (object, first)
    )
    """,
    # Leases go by the clock of the database: those of servers differ.
    """
    CREATE FUNCTION unix_time() RETURNS double precision LANGUAGE sql VOLATILE AS
    'SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)'
    """,
    # Every transaction adds what it has changed to one of the slots: one row for all would have
    # them wait for each other.
    """
    CREATE TABLE totals (
        slot integer PRIMARY KEY,
        num_objects bigint NOT NULL DEFAULT 0,
        num_bytes bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50)
    """,
    f"INSERT INTO totals (slot) SELECT * FROM generate_series(0, {NUM_SLOTS - 1})",
    *_RESUMPTION,
    f"INSERT INTO state_version VALUES ({VERSION})",
)

_MIGRATION: Final = (*_RESUMPTION, f"UPDATE state_version SET version = {VERSION}")
"""Makes tables of this version out of those of version 3."""


class OtherVersion(Unreachable):
    """The tables have a version that this server does not support. The message names it."""


class NoTables(Unreachable):
    """The database has no state."""


def make_tables(session: PostgresSession) -> None:
    """Creates the tables, or upgrades those of an older version. If several servers start at the
    same time, one does so and the others wait. Raises psycopg.Error if the server refuses it, or
    the connection is lost; OtherVersion if the tables have another version."""
    if _version(session) == VERSION and has_shares(session):
        return
    with session.patient():  # all rows may have to be read
        session.begin()
        try:
            session.execute("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
            version = _version(session)
            upgrade = _SCHEMA if version is None else () if version == VERSION else _MIGRATION
            for statement in (*upgrade, *_SHARES):
                session.execute(statement)
            session.commit()
        except BaseException:
            session.rollback()
            raise


def need_tables(session: PostgresSession) -> None:
    """Checks that tables of this version exist. Nothing is changed: servers of an older version may
    use the database, and could not connect to it again. Raises NoTables if the database has no
    tables; OtherVersion if the tables have another version."""
    version = _version(session)
    if version is None:
        raise NoTables("the database has no tables of fastovms")
    if version != VERSION:
        raise OtherVersion(
            f"the database has the format {version}, not {VERSION}: a server of this "
            "version converts it when it starts, after which older servers cannot connect"
        )


def has_shares(session: SqlConnection) -> bool:
    """Returns whether the table `shares` exists, which older servers of this version do not
    create."""
    return _has_table(session, "shares")


def _has_table(session: SqlConnection, name: str) -> bool:
    # Not `to_regclass`, which within a transaction may remember that there was no such table.
    [has_table] = session.execute(
        "SELECT EXISTS (SELECT FROM pg_tables WHERE tablename = ? "
        "AND schemaname = ANY (current_schemas(false)))",
        (name,),
    ).fetchone()
    return bool(has_table)


def _version(session: PostgresSession) -> int | None:
    """Returns the version of the tables; None = no tables. Raises OtherVersion if this server does
    not support the version."""
    if not _has_table(session, "state_version"):
        return None
    [version] = session.execute("SELECT max(version) FROM state_version").fetchone()
    if version is None or not _OLDEST <= version <= VERSION:
        of = "from a later fastovms" if version and version > VERSION else "not a known format"
        raise OtherVersion(f"the database has the format {version}, not {VERSION}: it is {of}")
    return int(version)


CHANNEL: Final = "fastovms"
"""The channel of all notifications. A notification contains a topic of `watchers`."""


class SharedTables(Tables):
    """The tables of a PostgreSQL database. Totals are kept in several slots, which are summed, so
    that transactions do not wait for each other."""

    locks = RowLocks(wait="FOR UPDATE", skip="FOR UPDATE SKIP LOCKED")

    def __init__(self, connection: SqlConnection, clock: Clock, max_object: int) -> None:
        super().__init__(connection, clock, max_object)
        self._topics: set[str] = set()

    def begin(self) -> None:
        """Discards the growth of an earlier transaction that was not committed."""
        self.growth = {}
        self._topics.clear()

    def notify(self, topic: str) -> None:
        """Notifies the watchers of a topic, once the transaction is committed."""
        self._topics.add(topic)

    def send_notifications(self) -> None:
        if self._topics:
            self.execute(
                f"SELECT pg_notify('{CHANNEL}', topic) FROM unnest(CAST(? AS text[])) AS topic",
                (sorted(self._topics),),
            )

    def write_growth(self) -> None:
        """Adds the transaction's growth to its session's slots. Call it last, so that other
        transactions of these slots wait only for the commit."""
        if not self.growth:
            return
        tenants = sorted(self.growth)  # in one order, so that no two wait for each other
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

    def sum_slots(self) -> Totals:
        """Returns the totals of all servers together."""
        row = self._execute(
            "SELECT CAST(sum(num_objects) AS bigint), CAST(sum(num_bytes) AS bigint) FROM totals"
        ).fetchone()
        return Totals(*row)

    def sum_shares(self) -> Shares:
        """Returns the totals of each tenant; counts all rows if older servers have created the
        tables."""
        if not has_shares(self):
            return self.count()
        rows = self._execute(
            "SELECT tenant, CAST(sum(num_objects) AS bigint), CAST(sum(num_bytes) AS bigint) "
            "FROM shares GROUP BY tenant"
        )
        shares = {tenant: Totals(*numbers) for tenant, *numbers in rows}
        return {tenant: share for tenant, share in shares.items() if share != Totals()}

    def recount_shares(self) -> None:
        """Recounts the shares of each tenant if an older server has updated only `totals`."""
        [differs] = self._execute(
            "SELECT (SELECT sum(num_objects) FROM totals) <> "
            "coalesce((SELECT sum(num_objects) FROM shares), 0) OR "
            "(SELECT sum(num_bytes) FROM totals) <> "
            "coalesce((SELECT sum(num_bytes) FROM shares), 0)"
        ).fetchone()
        if not differs:
            return
        # Other transactions write their growth last. What is not committed when this one has the
        # lock is in neither of the two tables.
        self._execute("LOCK TABLE shares IN EXCLUSIVE MODE")
        for statement in COUNT_SHARES:
            self._execute(statement)
