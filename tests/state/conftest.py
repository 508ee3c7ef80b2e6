"""State databases in memory and in files, with a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from fastovms.state.sqlite.database import Database
from fastovms.state.state_database import StateBounds

UNBOUNDED = StateBounds(max_age=1e9, max_count=10**9, max_bytes=10**12)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_database(clock: Clock) -> Iterator[Callable[..., Database]]:
    with ExitStack() as stack:

        def make(bounds: StateBounds = UNBOUNDED, path: str = ":memory:") -> Database:
            database = Database(path, bounds, clock)
            stack.callback(database.close)
            return database

        yield make
