"""Counts what is kept in tables to which many servers write, and tells them of changes."""

from __future__ import annotations

from typing import Final

from fastovms.state.postgres.postgres_schema import NUM_SLOTS
from fastovms.state.sql import RowLocks, SqlConnection
from fastovms.state.tables import Clock, Tables, Totals

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
        self.growth = Totals()
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
        """Adds what the transaction has changed to the slot of its session, as the last thing it
        does: another one of that slot waits for the commit only."""
        if self.growth != Totals():
            self._execute(
                "UPDATE totals SET num_objects = num_objects + ?, num_bytes = num_bytes + ? "
                f"WHERE slot = mod(pg_backend_pid(), {NUM_SLOTS})",
                self.growth,
            )

    def sum_slots(self) -> Totals:
        """Returns what is kept, by all servers together."""
        row = self._execute(
            "SELECT CAST(sum(num_objects) AS bigint), CAST(sum(num_bytes) AS bigint) FROM totals"
        ).fetchone()
        return Totals(*row)
