"""Counts requests as OpenVINO Model Server does, for dashboards that know its names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fastovms.http.routing.exchange import Exchange

_OK: Final = 200
_MALFORMED: Final = 412
"""Statuses below /v3 that mean that the body was refused before a model was asked."""

_ROUTES: Final = frozenset(
    f"{prefix}/{endpoint}"
    for prefix in ("/v1", "/v3", "/v3/v1")
    for endpoint in ("completions", "chat/completions", "responses", "tokenize")
)
"""The routes for which OVMS has one handler each, whichever the prefix."""

_TEXTS: Final = {
    "accepted": "Requests that named a model which is served here",
    "rejected": "None: what is wrong with a request is its model's to find",
    "success": "Accepted requests that were answered to the end",
    "fail": "Accepted requests that were not",
}


class OvmsMetrics(Collector):
    """An observer of the requests that a model is to answer. A request that names no model served
    here is not counted, as in OVMS: the counters are the models'.

    OVMS gives its counters no `_total`, so here they are of unknown type.
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
