"""Counts what is kept in tables to which many servers write, and tells them of changes."""

from __future__ import annotations

from typing import Final

from fastovms.state.postgres.postgres_schema import COUNT_SHARES, NUM_SLOTS, has_shares
from fastovms.state.sql import RowLocks, SqlConnection
from fastovms.state.tables import Clock, Shares, Tables, Totals, total_of

CHANNEL: Final = "fastovms"
"""The channel of all notifications. What they say is a topic of `watchers`."""


class SharedTables(Tables):
    """The rows of a database with slots, whose sum is what is kept."""

    locks = RowLocks(wait="FOR UPDATE", skip="FOR UPDATE SKIP LOCKED")

    def __init__(self, connection: SqlConnection, clock: Clock, max_object: int) -> None:
        super().__init__(connection, clock, max_object)
        self._topics: set[str] = set()

    def begin(self) -> None:
        """Forgets what a transaction has changed that was not committed."""
        self.growth = {}
        self._topics.clear()

    def notify(self, topic: str) -> None:
        """Tells those who wait for a topic, once the transaction is committed."""
        self._topics.add(topic)

    def send_notifications(self) -> None:
        if self._topics:
            self.execute(
                f"SELECT pg_notify('{CHANNEL}', topic) FROM unnest(CAST(? AS text[])) AS topic",
                (sorted(self._topics),),
            )

    def write_growth(self) -> None:
        """Adds what the transaction has changed to the slots of its session, as the last thing it
        does: another transaction of those slots waits for the commit only."""
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
        """Returns what is kept, by all servers together."""
        row = self._execute(
            "SELECT CAST(sum(num_objects) AS bigint), CAST(sum(num_bytes) AS bigint) FROM totals"
        ).fetchone()
        return Totals(*row)

    def sum_shares(self) -> Shares:
        """Returns what each tenant has, counted from all rows where older servers have made the
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
        """Counts again what each tenant has, where a server of an older version has changed only
        `totals`."""
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
