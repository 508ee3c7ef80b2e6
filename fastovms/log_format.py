"""Formats records of the log as text."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

from fastovms.quoting import encodable, one_line

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LogFormatter(logging.Formatter):
    """Formats a record so that nothing in its message or in its exception, which may repeat what a
    client wrote, can pass for another record: a message is one line, and the lines of a traceback
    are indented."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(encodable(super().formatMessage(record)))

    def formatException(self, ei: _ExcInfo) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def log_handler(handler: logging.Handler) -> logging.Handler:
    """Gives the handler the format of this module, and returns it."""
    handler.setFormatter(LogFormatter())
    return handler


def _indented(lines: str) -> str:
    return "\n".join(f"  {one_line(encodable(line))}" for line in lines.split("\n"))
