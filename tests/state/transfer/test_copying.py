from __future__ import annotations

import pytest

from fastovms.errors import ConfigurationError
from fastovms.state.transfer.copying import (
    copy_rows,
    damaged_rows,
    export,
    rows_in_file,
    rows_of,
)
from tests.state.transactions import add, find


def test_a_copy(make_sqlite, make_database, tmp_path):
    source, target, counted = make_sqlite(), make_database(), []
    add(source, "a")
    with rows_of(source) as rows:
        export(rows, tmp_path / "file", counted.append)
    with rows_in_file(tmp_path / "file") as rows:
        assert copy_rows(rows, target, counted.append) == (1, 0)
    assert sum(counted) == 6
    assert find(target, "a") == find(source, "a")
    target.check()


def test_texts_with_wrong_checksums(make_database):
    database = make_database()
    add(database, "a")
    with rows_of(database) as rows:
        assert list(damaged_rows(rows, lambda count: None)) == []
    with database.transaction() as tables:
        tables.execute("UPDATE objects SET body = ?", (b"other",))
        [key] = tables.execute("SELECT key FROM objects").fetchone()
    with rows_of(database) as rows:
        faults = list(damaged_rows(rows, lambda count: None))
    assert faults == [f"objects, object {key}: body is damaged"]


def test_files_that_cannot_be_had(make_sqlite, tmp_path):
    with (
        rows_of(make_sqlite()) as rows,
        pytest.raises(ConfigurationError, match=r"cannot write .*: No such file"),
    ):
        export(rows, tmp_path / "none" / "file", lambda count: None)
    with (
        pytest.raises(ConfigurationError, match=r"cannot read .*: Is a dir"),
        rows_in_file(tmp_path),
    ):
        pass
