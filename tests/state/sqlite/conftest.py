"""These tests are about SQLite alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastovms.state.sqlite.database import Database


@pytest.fixture
def make_database(make_sqlite: Callable[..., Database]) -> Callable[..., Database]:
    return make_sqlite
