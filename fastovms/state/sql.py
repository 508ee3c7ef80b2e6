"""Declares what the SQL of the state needs of a connection. Its SQL is what SQLite and PostgreSQL
have in common; the few words in which they differ are given to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

MAX_VARIABLES: Final = 500
"""How many variables one statement may have."""

T = TypeVar("T")


class SqlCursor(Protocol):
    """The rows that a statement returns."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class SqlConnection(Protocol):
    """A connection to a database."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> SqlCursor:
        """Runs a statement, in which each ? stands for one of the values."""


class RowLocks(NamedTuple):
    """The clauses with which a SELECT locks the rows it returns until the transaction ends. None is
    needed where one process has the database for itself.

    Attributes:
        wait: waits for rows that others have locked.
        skip: leaves those out.
    """

    wait: str = ""
    skip: str = ""


def marks(values: Iterable[object]) -> str:
    """Returns as many variables as there are values."""
    return ", ".join("?" for _ in values)


def slices(values: Sequence[T], length: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), length):
        yield values[start : start + length]
