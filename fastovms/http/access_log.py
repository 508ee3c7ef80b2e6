"""The access log, and the metrics of the HTTP server."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import orjson
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from fastovms.backend_stats import Histogram
from fastovms.http.messages import Exchange
from fastovms.http.server import HttpServer
from fastovms.quoting import one_line
from fastovms.telemetry.log_format import timestamp


class AccessLog:
    """An observer that writes the access log. Queries and headers are left out, because clients put
    secrets into both.

    Args:
        form: "text" or "json".
        write: writes a line, given without its line feed.
        clock: returns the Unix time in seconds.
        skip: paths or routes whose requests are not logged if their status is below 400.
    """

    def __init__(
        self,
        form: str,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        skip: Collection[str] = (),
    ) -> None:
        self._skip = frozenset(path.rstrip("/") for path in skip)
        self._write = write
        self._clock = clock
        self._format = {"text": _text, "json": _json}[form]

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        # The route does not contain --root-path. Probes may end with a slash.
        paths = {path.rstrip("/") for path in (request.raw_path.partition("?")[0], request.route)}
        if exchange.status < 400 and not self._skip.isdisjoint(paths - {""}):
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
    """Returns the line as text: first the fields that are clear without a name, then the others as
    name=value."""
    head = " ".join(str(fields.pop(name)) for name in ("time", "client", "method", "path"))
    rest = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
    return f"{head} {rest}"


def _quoted(value: object) -> str:
    text = str(value)
    if text and text.isascii() and text.isprintable() and not set(text) & {" ", '"', "="}:
        return text
    return orjson.dumps(text).decode()


_PREFIX: Final = "fastovms_http_"
_DURATION_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 900.0, 3600.0,
)  # fmt: skip


class HttpMetrics(Collector):
    """An observer that counts requests, durations and bytes for `/metrics`. Labels contain routes,
    never paths, because clients could invent any number of paths.

    Args:
        server: returns the server, whose statistics are read at every scrape.
    """

    def __init__(self, server: Callable[[], HttpServer]) -> None:
        self._server = server
        self._durations: dict[tuple[str, str, int], Histogram] = {}
        self._num_received = 0
        self._num_sent = 0

    def __call__(self, exchange: Exchange) -> None:
        request, status, num_bytes, duration, _ = exchange
        if request.body:
            self._num_received += len(request.body)
        self._num_sent += num_bytes
        key = (request.method, request.route, status)
        durations = self._durations.get(key)
        if durations is None:
            durations = self._durations[key] = Histogram(_DURATION_BUCKETS)
        durations.observe(duration)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            f"{_PREFIX}requests",
            "Requests answered; 499: the client disconnected before its answer began",
            labels=["method", "route", "status"],
        )
        by_route: dict[str, Histogram] = {}
        for (method, route, status), histogram in self._durations.items():
            requests.add_metric([method, route, str(status)], histogram.count)
            by_route.setdefault(route, Histogram(_DURATION_BUCKETS)).add(histogram)
        yield requests
        durations = HistogramMetricFamily(
            f"{_PREFIX}request_duration_seconds",
            "Seconds from a request's head to the last byte of its answer",
            labels=["route"],
        )
        for route, histogram in by_route.items():
            durations.add_metric([route], *histogram.buckets())
        yield durations
        yield CounterMetricFamily(
            f"{_PREFIX}received_bytes", "Bytes of request bodies received", self._num_received
        )
        yield CounterMetricFamily(f"{_PREFIX}sent_bytes", "Bytes of answers sent", self._num_sent)
        server = self._server()
        for name, description, value in (
            ("connections", "Open connections of clients", server.num_connections),
            ("handshakes", "TLS handshakes in progress", server.num_handshakes),
            ("buffered_body_bytes", "Bytes of request bodies in memory", server.num_body_bytes),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}{name}", description, value)
