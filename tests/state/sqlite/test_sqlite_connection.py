"""What SQLite says of a damaged file is a fault of SQLite's, whatever bytes it quotes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fastovms.state.sqlite.database import primary_code
from fastovms.state.sqlite.sqlite_connection import StateConnection

NAME = "objects_of_the_test"
NO_TEXT = b"\xc4\x41" * (len(NAME) // 2) + b"\xff"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A database in whose schema the name of a table is no UTF-8."""
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE {NAME} (key)")
    connection.commit()
    connection.close()
    path.write_bytes(path.read_bytes().replace(NAME.encode(), NO_TEXT, 1))
    return path


@pytest.mark.parametrize("method", ["execute", "executescript"])
def test_a_message_that_is_no_text(damaged: Path, method: str) -> None:
    plain = sqlite3.connect(damaged)
    with pytest.raises(UnicodeDecodeError):
        getattr(plain, method)("SELECT * FROM other")
    plain.close()
    connection = sqlite3.connect(damaged, factory=StateConnection)
    with pytest.raises(sqlite3.DatabaseError, match=r"\\xc4A") as caught:
        getattr(connection, method)("SELECT * FROM other")
    assert primary_code(caught.value) == sqlite3.SQLITE_CORRUPT
    connection.close()
