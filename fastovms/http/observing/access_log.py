"""Writes the access log: one line a request, as text or JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

import orjson

from fastovms.http.routing.exchange import Exchange
from fastovms.quoting import one_line
from fastovms.telemetry.log_format import timestamp


class AccessLog:
    """An observer that writes lines. The query is left out, and so are all headers: clients put
    secrets into both.

    Args:
        form: "text" or "json".
        write: takes a line without its end.
        clock: tells unix time in seconds.
        skip: paths whose requests get no line if their status is below 400.
    """

    def __init__(
        self,
        form: str,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        skip: Collection[str] = (),
    ) -> None:
        self._skip = frozenset(skip)
        self._write = write
        self._clock = clock
        self._format = {"text": _text, "json": _json}[form]

    def __call__(self, exchange: Exchange) -> None:
        if exchange.status < 400 and exchange.request.raw_path.partition("?")[0] in self._skip:
            return
        self._write(one_line(self._format(dict(self._fields(exchange)))))

    def _fields(self, exchange: Exchange) -> Iterator[tuple[str, object]]:
        request = exchange.request
        yield "time", timestamp(self._clock())
        yield "client", request.client or "-"
        yield "method", request.method
        yield "path", request.raw_path or "-"
        yield "status", exchange.status
        yield "bytes", exchange.num_bytes
        yield "duration_ms", round(exchange.duration * 1000, 1)
        if not exchange.completed:
            yield "cut", True
        yield "id", request.id
        if request.trace is not None:
            yield "trace_id", request.trace.trace_id
            yield "span_id", request.trace.span_id
        yield from request.log_fields.items()


def _json(fields: dict[str, object]) -> str:
    return orjson.dumps(fields, default=str).decode()


def _text(fields: dict[str, object]) -> str:
    """Returns the line as text: first the fields that tell themselves apart, then the others as
    name=value."""
    head = " ".join(str(fields.pop(name)) for name in ("time", "client", "method", "path"))
    rest = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
    return f"{head} {rest}"


def _quoted(value: object) -> str:
    text = str(value)
    if text and text.isascii() and text.isprintable() and not set(text) & {" ", '"', "="}:
        return text
    return orjson.dumps(text).decode()
