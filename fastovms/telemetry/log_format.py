"""Configures the log, and formats records and times."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

import orjson

import fastovms
from fastovms.quoting import one_line, quotable

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def timestamp(unix_time: float) -> str:
    """Returns a Unix time in the format of all logs: RFC 3339 in UTC with milliseconds."""
    text = datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """Formats a record so that client text in it cannot imitate another record: a message is one
    line, and traceback lines are indented."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return timestamp(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(quotable(super().formatMessage(record)))

    def formatException(self, ei: _ExcInfo) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        members = {
            "time": timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": quotable(record.getMessage()),
        }
        if record.exc_info:
            members["exception"] = quotable(self.formatException(record.exc_info))
        if record.stack_info:
            members["stack"] = quotable(record.stack_info)
        return one_line(orjson.dumps(members).decode())


_FORMATTERS: Final = {"text": TextFormatter, "json": JsonFormatter}


def level_named(name: str) -> str:
    """Returns the `logging` name of a level of the flag `--log-level`."""
    return "DEBUG" if name == "trace" else name.upper()


def log_handler(handler: logging.Handler, form: str = "text") -> logging.Handler:
    """Sets the handler's formatter and returns the handler.

    Args:
        form: "text" or "json".
    """
    handler.setFormatter(_FORMATTERS[form]())
    return handler


def start_log(handler: logging.Handler, level: int | str) -> None:
    """Sends log records to the handler: this package's from `level` on, and libraries' from `level`
    or INFO on, whichever is higher, because numba writes 100,000 DEBUG lines while it compiles.
    Raises ValueError if no level has this name."""
    logging.basicConfig(level=level, handlers=[handler])
    root = logging.getLogger()
    logging.getLogger(fastovms.__name__).setLevel(root.level)
    root.setLevel(max(root.level, logging.INFO))


def level_in_use() -> int:
    """Returns the level of this package's log."""
    return logging.getLogger(fastovms.__name__).getEffectiveLevel()


def form_in_use() -> str:
    """Returns the format of this process's log, "text" or "json", for child processes."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    return "json" if any(isinstance(one, JsonFormatter) for one in formatters) else "text"


def _indented(lines: str) -> str:
    return "\n".join(f"  {one_line(quotable(line))}" for line in lines.split("\n"))
