"""Writes a state into a file that any server can read, whatever its database: a JSON text a line,
of which the first says what the file is, and the last that it is whole."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Callable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from fastovms.errors import ConfigurationError
from fastovms.state.tables import VERSION
from fastovms.state.transfer.row_copy import EVENTS, FORMS, PAGE, Page, Row, RowSource, TableForm

_FORMAT: Final = "fastovms-state"

_INTEGER_LIMIT: Final = 2**63
_BLOBS: Final = ("body", "events", "data", "outputs", "job")
_OLDEST: Final = 3
"""The first version that there was of such files. Its rows of events end before `outputs`."""

_FORM_OF: Final = {form.name: form for form in FORMS}


def write_portable(path: Path, source: RowSource, count: Callable[[int], object]) -> None:
    """Writes a file that only its owner can read, and that has its name once it is whole.

    Args:
        count: called with the number of rows that have been written since the last time.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    try:
        with part.open("wb") as file:
            header = {"format": _FORMAT, "version": VERSION, "num_rows": source.num_rows()}
            crc, num_rows = zlib.crc32(_line(header)), 0
            file.write(_line(header))
            for form, rows in source.pages():
                lines = b"".join(_line([form.name, *map(_value, row)]) for row in rows)
                crc = zlib.crc32(lines, crc)
                file.write(lines)
                num_rows += len(rows)
                count(len(rows))
            file.write(_line({"end": num_rows, "crc": crc}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class PortableFile:
    """Implements `RowSource` by a file. Its methods raise ConfigurationError where it is none, is
    damaged or has no end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        line = file.readline()
        self._crc = zlib.crc32(line)
        header = _parse(line)
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise ConfigurationError(f"{file.name} is no exported state")
        if (version := header.get("version")) not in range(_OLDEST, VERSION + 1):
            raise ConfigurationError(f"the format of {file.name} is {version}, not {VERSION}")
        num_rows = header.get("num_rows")
        if not isinstance(num_rows, int):
            raise ConfigurationError(f"{file.name} is damaged")
        self._num_rows = num_rows

    def num_rows(self) -> int:
        return self._num_rows

    def pages(self) -> Iterator[Page]:
        for form, rows in groupby(self._rows(), key=lambda row: row[0]):
            while some := [row for _, row in islice(rows, PAGE)]:
                yield form, some

    def _rows(self) -> Iterator[tuple[TableForm, Row]]:
        for num_rows, line in enumerate(self._file):
            value = _parse(line)
            if isinstance(value, dict):
                if value != {"end": num_rows, "crc": self._crc}:
                    break
                return
            self._crc = zlib.crc32(line, self._crc)
            yield self._row(value)
        raise ConfigurationError(f"{self._file.name} is damaged, or was cut off")

    def _row(self, value: Any) -> tuple[TableForm, Row]:
        try:
            form = _FORM_OF[value[0]]
            if form is EVENTS and len(value) == len(form.columns):
                value = [*value, None]
            return form, [
                _column(name, part) for name, part in zip(form.columns, value[1:], strict=True)
            ]
        except (LookupError, TypeError, ValueError):
            raise ConfigurationError(f"{self._file.name} is damaged") from None


def _column(name: str, value: Any) -> object:
    """Returns what a column takes. Raises TypeError or ValueError: no column takes it."""
    if isinstance(value, bool | list | dict):
        raise TypeError
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        raise ValueError
    return base64.b64decode(value) if name in _BLOBS and value is not None else value


def _value(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _line(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
