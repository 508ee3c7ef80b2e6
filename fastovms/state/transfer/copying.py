"""Copies a state to another place, and finds what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.state.seal import unseal
from fastovms.state.transfer.place import OpenState
from fastovms.state.transfer.portable_file import PortableFile, write_portable
from fastovms.state.transfer.row_copy import RowSource, RowTarget, TableRows

Counter = Callable[[int], object]
"""Called with the number of rows that are done since the last time."""


class Copied(NamedTuple):
    """How many objects were added, and how many were there already and stayed as they were."""

    num_added: int
    num_left: int


@contextmanager
def rows_of(state: OpenState) -> Iterator[RowSource]:
    """Yields the rows of a state, all as of one moment."""
    with state.snapshot() as tables:
        yield TableRows(tables)


@contextmanager
def rows_in_file(path: Path) -> Iterator[RowSource]:
    """Yields the rows of an exported state.

    Raises:
        ConfigurationError: the file cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            yield PortableFile(file)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None


def copy_rows(source: RowSource, target: OpenState, count: Counter) -> Copied:
    """Adds all rows to a state, or none where that fails."""
    with target.transaction() as tables:
        rows = RowTarget(tables)
        for form, page in source.pages():
            rows.add(form, page)
            count(len(page))
        return Copied(rows.num_added, rows.num_left)


def export(source: RowSource, path: Path, count: Counter) -> None:
    """Writes all rows into a file.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        write_portable(path, source, count)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None


def damaged_rows(source: RowSource, count: Counter) -> Iterator[str]:
    """Yields a line for each row with a text that has not the checksum it had."""
    for form, page in source.pages():
        for row in page:
            for name, value in zip(form.columns, row, strict=True):
                try:
                    if isinstance(value, bytes):
                        unseal(value)
                except StateFailed:
                    yield f"{form.name}, object {row[0]}: {name} is damaged"
        count(len(page))
