"""Counts what is kept in tables to which many servers write."""

from __future__ import annotations

from fastovms.state.postgres.postgres_schema import NUM_SLOTS
from fastovms.state.sql import RowLocks
from fastovms.state.tables import Tables, Totals


class SharedTables(Tables):
    """The rows of a database with slots, whose sum is what is kept."""

    locks = RowLocks(wait="FOR UPDATE", skip="FOR UPDATE SKIP LOCKED")

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
