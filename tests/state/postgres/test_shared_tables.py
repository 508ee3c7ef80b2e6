from __future__ import annotations

from fastovms.state.postgres.postgres_connection import open_session
from fastovms.state.postgres.postgres_schema import make_tables
from fastovms.state.postgres.shared_tables import SharedTables
from fastovms.state.tables import Totals
from tests.state.transactions import add


def test_the_slots_of_all_sessions_are_counted(postgres):
    sessions = [open_session(postgres.connection_parameters()) for _ in range(3)]
    make_tables(sessions[0])
    for session in sessions:
        tables = SharedTables(session, lambda: 0.0, 1000)
        tables.growth = {"t": Totals(2, 60), "u": Totals(0, 40)}
        tables.write_growth()
        tables.growth = {"t": Totals(-1, 0), "u": Totals(0, -40)}
        tables.write_growth()
    assert tables.sum_slots() == (3, 180)
    assert tables.sum_shares() == {"t": (3, 180)}
    used = sessions[0].execute("SELECT count(*) FROM totals WHERE num_bytes <> 0").fetchone()
    assert used == (3,)
    for session in sessions:
        session.close()


def test_what_an_older_server_has_written_is_counted_by_tenant(postgres, make_postgres):
    database = make_postgres()
    add(database, "a")
    [size] = database.connect().session.execute("SELECT size FROM objects").fetchone()
    # A server of an older version makes no shares, and writes none of its own.
    for statement in (
        "INSERT INTO objects (tenant, kind, id, progress, body, size, used_at) "
        "VALUES ('u', 0, 'old', 1, '', 500, 0)",
        "UPDATE totals SET num_objects = num_objects + 1, num_bytes = num_bytes + 500 "
        "WHERE slot = 63",
    ):
        database.connect().session.execute(statement)
    with database.transaction() as tables:
        tables.recount_shares()
    with database.snapshot() as tables:
        assert tables.sum_shares() == {"t": (1, size), "u": (1, 500)}
