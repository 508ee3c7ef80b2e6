from __future__ import annotations

from fastovms.state.postgres.postgres_connection import open_session
from fastovms.state.postgres.postgres_schema import make_tables
from fastovms.state.postgres.shared_tables import SharedTables
from fastovms.state.tables import Totals


def test_the_slots_of_all_sessions_are_counted(postgres):
    sessions = [open_session(postgres.connection_parameters()) for _ in range(3)]
    make_tables(sessions[0])
    for session in sessions:
        tables = SharedTables(session, lambda: 0.0, 1000)
        tables.growth = Totals(2, 100)
        tables.write_growth()
        tables.growth = Totals(-1, 0)
        tables.write_growth()
    assert tables.sum_slots() == (3, 300)
    used = sessions[0].execute("SELECT count(*) FROM totals WHERE num_bytes <> 0").fetchone()
    assert used == (3,)
    for session in sessions:
        session.close()
