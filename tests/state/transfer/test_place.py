from __future__ import annotations

import sqlite3
import sys

import pytest

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.state.transfer.place import open_place
from tests.state.transactions import add


def test_a_directory(tmp_path):
    with (
        pytest.raises(ConfigurationError, match="there is no state in"),
        open_place(str(tmp_path), None, {}),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    with open_place(str(tmp_path), None, {}, must_exist=False) as state:
        add(state, "a")
        with (
            pytest.raises(ConfigurationError, match="another server uses it"),
            open_place(str(tmp_path), None, {}),
        ):
            pass
    with open_place(str(tmp_path), None, {}) as state:
        assert list(state.faults()) == []


def test_a_fault_within(tmp_path):
    with (
        pytest.raises(StateFailed, match="no luck"),
        open_place(str(tmp_path), None, {}, must_exist=False),
    ):
        raise sqlite3.OperationalError("no luck")


def test_a_directory_of_a_later_version(tmp_path):
    with open_place(str(tmp_path), None, {}, must_exist=False):
        pass
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with (
        pytest.raises(ConfigurationError, match="its format is 99"),
        open_place(str(tmp_path), None, {}),
    ):
        pass


def test_a_url_without_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fastovms.state.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with (
        pytest.raises(ConfigurationError, match=r"pip install 'fastovms\[postgres\]'"),
        open_place("postgresql://x", None, {}),
    ):
        pass
