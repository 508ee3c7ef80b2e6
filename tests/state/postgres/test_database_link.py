"""Connections to a server that goes and comes back."""

from __future__ import annotations

import socket

import pytest

from fastovms.state.postgres.database_link import DatabaseLink
from fastovms.state.postgres.postgres_connection import Unreachable
from fastovms.state.postgres.server_address import ServerAddress
from fastovms.state.tables import Totals
from tests.state.conftest import Clock


@pytest.fixture
def nowhere():
    """The address of a port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield ServerAddress({"host": "127.0.0.1", "port": str(taken.getsockname()[1])})


def test_attempts_become_rare(nowhere, caplog):
    clock = Clock()
    link = DatabaseLink(nowhere, clock)
    with pytest.raises(Unreachable, match="Connection refused"):
        link.connect()
    delays = []
    for _ in range(9):
        delays.append(link.seconds_left())
        assert link.try_again() is None, "it is not due"
        clock.now += delays[-1]
        with pytest.raises(Unreachable, match="Connection refused"):
            link.connect()
        assert link.seconds_left() == 0, "who only asks makes no attempt"
        assert link.try_again() is None
    assert 0.1 < delays[0] <= 0.25
    assert 1 <= delays[-1] <= 2
    assert caplog.text.count("responses are not stored") == 1, (
        "the same reason is not told again and again"
    )
    assert link.num_connects == 0


def test_it_can_be_reached_again(postgres, nowhere, caplog):
    clock = Clock()
    link = DatabaseLink(nowhere, clock)
    with pytest.raises(Unreachable):
        link.connect()
    link._address = postgres
    clock.now += 1
    session = link.try_again()
    assert session is not None
    session.close()
    assert (link.trouble, link.num_connects) == ("", 1)
    assert "can be reached again" in caplog.text
    link.connect().close()


def test_a_database_in_which_no_tables_can_be_made(postgres):
    link = DatabaseLink(postgres)
    session = link.connect()
    session.execute("DROP TABLE state_version")
    session.close()
    with pytest.raises(Unreachable, match='"objects" already exists'):
        link.connect()


def test_totals_grow(nowhere):
    link = DatabaseLink(nowhere)
    link.add(Totals(2, 30))
    link.add(Totals(-1, -10))
    assert link.totals == (1, 20)
