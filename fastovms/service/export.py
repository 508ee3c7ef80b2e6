"""Exports traces, and metrics under OVMS's names."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastovms.api.served import ServedModels
from fastovms.errors import ConfigurationError
from fastovms.http.messages import Exchange
from fastovms.telemetry.tracing import Tracer

logger = logging.getLogger(__name__)


_OK: Final = 200
_MALFORMED: Final = 412
"""The HTTP statuses of /v3 for bodies that are refused before a model is found."""

_ROUTES: Final = frozenset(
    f"{prefix}/{endpoint}"
    for prefix in ("/v1", "/v3", "/v3/v1")
    for endpoint in ("completions", "chat/completions", "responses", "tokenize")
)
"""The routes that OVMS counts in one series, whatever their prefix."""

_TEXTS: Final = {
    "accepted": "Requests that named a model which is served here",
    "rejected": "Always 0: a request that names a served model is accepted",
    "success": "Accepted requests that were answered to the end",
    "fail": "Accepted requests that failed or were cut off",
}


class OvmsMetrics(Collector):
    """Counts requests under OVMS's metric names. Requests without a known model are not counted, as
    in OVMS, because counters are per model.

    OVMS's counter names do not end in `_total`, so they are exported with the type unknown.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        model = request.log_fields.get("model")
        if request.method != "POST" or request.route not in _ROUTES:
            return
        if model is None or exchange.status == _MALFORMED:
            return
        method = "Stream" if request.log_fields.get("stream") else "Unary"
        succeeded = exchange.status == _OK and exchange.completed
        self._counts[method, str(model)].update(("accepted", "success" if succeeded else "fail"))

    def collect(self) -> Iterable[Metric]:
        for name, text in _TEXTS.items():
            metric = Metric(f"ovms_requests_{name}", text, "unknown")
            for (method, model), counts in self._counts.items():
                metric.add_sample(
                    metric.name,
                    {
                        "api": "V3",
                        "interface": "REST",
                        "method": method,
                        "name": model,
                        "version": "1",
                    },
                    counts[name],
                )
            yield metric


class LoadedGraphs(Collector):
    """Exports which models are in memory, under OVMS's metric names for its graphs."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        text = "1 for a model that is in memory, 0 for one that its next request loads"
        loaded = GaugeMetricFamily("ovms_graph_loaded", text, labels=["name"])
        for model in self._models.known:
            loaded.add_metric([model.name], float(model.served is not None))
        yield loaded


_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SPOKEN: Final = "http/protobuf"
_MISSING: Final = "traces need OpenTelemetry, which is not installed: pip install '.[otel]'"


@contextmanager
def span_tracer(endpoint: str | None, environment: Mapping[str, str]) -> Iterator[Tracer | None]:
    """Yields a tracer, which sends its spans at exit, or None if tracing is off. `endpoint` is the
    collector's address; None = from the environment, if set there. Raises ConfigurationError if
    `endpoint` is given but cannot be used."""
    if not _is_wanted(endpoint, environment):
        yield None
        return
    protocol = next(filter(None, map(environment.get, _PROTOCOLS)), _SPOKEN)
    if protocol != _SPOKEN:
        raise ConfigurationError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be {_SPOKEN}, not {protocol}")
    try:
        from fastovms.service.open_telemetry import OpenTelemetryTracer, otlp_exporter
    except ImportError:
        if endpoint is not None:
            raise ConfigurationError(f"--otlp-traces-endpoint: {_MISSING}") from None
        logger.warning("the environment has OTEL_EXPORTER_OTLP_ENDPOINT, but %s", _MISSING)
        yield None
        return
    tracer = OpenTelemetryTracer(otlp_exporter(endpoint))
    try:
        yield tracer
    finally:
        tracer.close()


def _is_wanted(endpoint: str | None, environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if endpoint is not None:
        return True
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(map(environment.get, _ENDPOINTS))
