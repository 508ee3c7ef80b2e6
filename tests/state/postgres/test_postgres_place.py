from __future__ import annotations

import psycopg
import pytest

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.state.postgres.postgres_connection import open_session
from fastovms.state.postgres.postgres_place import open_url
from fastovms.state.postgres.server_address import ServerAddress
from tests.state.conftest import UNBOUNDED
from tests.state.transactions import add, find


def test_a_database(postgres):
    with open_url(postgres, UNBOUNDED) as state:
        add(state, "a")
    with open_url(postgres, UNBOUNDED) as state:
        assert find(state, "a") is not None
        assert list(state.faults()) == []


def test_a_statement_may_take_longer_than_those_of_servers(postgres):
    with open_url(postgres, UNBOUNDED) as state, state.snapshot() as tables:
        assert tables.execute("SHOW statement_timeout").fetchone() == ("1h",)


def test_faults_are_told_as_they_are_found(postgres):
    with open_url(postgres, UNBOUNDED) as state:
        for number in range(102):
            add(state, f"r{number:03}")
        with state.transaction() as tables:
            tables.execute("UPDATE objects SET size = size + 1")
        faults = state.faults()
        assert next(faults).startswith("r000: its size")
        assert len(list(faults)) == 102, "the other sizes, and the totals"


def test_one_that_cannot_be_reached():
    nowhere = ServerAddress({"host": "127.0.0.1", "port": "1"})
    with (
        pytest.raises(StateFailed, match=r"postgresql://127.0.0.1/: .*Connection refused"),
        open_url(nowhere, UNBOUNDED),
    ):
        pass


def test_one_that_has_no_state_is_left_as_it_is(postgres, caplog):
    for _ in range(2):
        with (
            pytest.raises(ConfigurationError, match=r"^there is no state in postgresql://"),
            open_url(postgres, UNBOUNDED, must_exist=True),
        ):
            pass
    assert caplog.text == ""
    with open_url(postgres, UNBOUNDED):
        pass
    with open_url(postgres, UNBOUNDED, must_exist=True) as state:
        assert list(state.faults()) == []


def test_reading_leaves_older_tables_as_they_are(postgres):
    with open_url(postgres, UNBOUNDED):
        pass
    session = open_session(postgres.connection_parameters())
    session.execute("UPDATE state_version SET version = 3")
    with (
        pytest.raises(StateFailed, match="its format is 3, not 4: a server of this version"),
        open_url(postgres, UNBOUNDED, must_exist=True),
    ):
        pass
    assert session.execute("SELECT version FROM state_version").fetchall() == [(3,)]
    session.close()


def test_what_fails_within(postgres):
    with pytest.raises(StateFailed, match="no luck"), open_url(postgres, UNBOUNDED):
        raise psycopg.OperationalError("no\nluck")


def test_what_another_place_fails_is_not_its_own(postgres):
    with (
        pytest.raises(StateFailed, match=r"^elsewhere: no luck$"),
        open_url(postgres, UNBOUNDED),
    ):
        raise StateFailed("elsewhere: no luck")
