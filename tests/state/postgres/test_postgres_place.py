from __future__ import annotations

import psycopg
import pytest

from fastovms.errors import StateFailed
from fastovms.state.postgres.postgres_place import open_url
from fastovms.state.postgres.server_address import ServerAddress
from tests.state.conftest import UNBOUNDED
from tests.state.transactions import add, find


def test_a_database(postgres):
    with open_url(postgres, UNBOUNDED) as state:
        add(state, "a")
    with open_url(postgres, UNBOUNDED) as state:
        assert find(state, "a") is not None
        assert state.faults() == []


def test_one_that_cannot_be_reached():
    nowhere = ServerAddress({"host": "127.0.0.1", "port": "1"})
    with (
        pytest.raises(StateFailed, match=r"postgresql://127.0.0.1/: .*Connection refused"),
        open_url(nowhere, UNBOUNDED),
    ):
        pass


def test_what_fails_within(postgres):
    with pytest.raises(StateFailed, match="no luck"), open_url(postgres, UNBOUNDED):
        raise psycopg.OperationalError("no\nluck")


def test_what_another_place_fails_is_not_its_own(postgres):
    with (
        pytest.raises(StateFailed, match=r"^elsewhere: no luck$"),
        open_url(postgres, UNBOUNDED),
    ):
        raise StateFailed("elsewhere: no luck")
