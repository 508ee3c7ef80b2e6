"""The request counters of OpenVINO Model Server, for dashboards that know its names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fastovms.http.state import Exchange

_OK: Final = 200
_TEXTS: Final = {
    "accepted": "Requests that named a model which is served here",
    "rejected": "Requests that named none",
    "success": "Accepted requests that were answered to the end",
    "fail": "Accepted requests that were not",
}


class OvmsMetrics(Collector):
    """An observer of the requests below /v3 that ask a model for something.

    OVMS gives its counters no `_total`, so here they are of unknown type.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in _TEXTS}

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.method != "POST" or not request.route.startswith("/v3/"):
            return
        method = "Stream" if request.log_fields.get("stream") else "Unary"
        labels = method, str(request.log_fields.get("model", ""))
        if "model" not in request.log_fields:
            self._counts["rejected"][labels] += 1
            return
        self._counts["accepted"][labels] += 1
        succeeded = exchange.status == _OK and exchange.completed
        self._counts["success" if succeeded else "fail"][labels] += 1

    def collect(self) -> Iterable[Metric]:
        for name, counter in self._counts.items():
            metric = Metric(f"ovms_requests_{name}", _TEXTS[name], "unknown")
            for (method, model), count in counter.items():
                metric.add_sample(
                    metric.name,
                    {
                        "api": "V3",
                        "interface": "REST",
                        "method": method,
                        "name": model,
                        "version": "1",
                    },
                    count,
                )
            yield metric
