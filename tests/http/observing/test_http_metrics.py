from __future__ import annotations

from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from fastovms.http.observing.http_metrics import HttpMetrics
from fastovms.http.routing.exchange import Exchange
from fastovms.http.routing.messages import Request


def test_series() -> None:
    levels = SimpleNamespace(num_connections=3, num_handshakes=4, num_body_bytes=5)
    metrics = HttpMetrics(lambda: levels)
    registry = CollectorRegistry()
    registry.register(metrics)
    for route, status, duration in (("/a", 200, 0.02), ("/a", 200, 9.0), ("", 404, 0.0)):
        request = Request("POST", "/a/secret", body=b"12345")
        request.route = route
        metrics(Exchange(request, status, 100, duration, True))
    get = registry.get_sample_value
    assert get("fastovms_http_connections") == 3
    assert get("fastovms_http_handshakes") == 4
    assert get("fastovms_http_buffered_body_bytes") == 5
    assert get("fastovms_http_received_bytes_total") == 15
    assert get("fastovms_http_sent_bytes_total") == 300
    for route, status, count in (("/a", "200", 2), ("", "404", 1)):
        labels = {"method": "POST", "route": route, "status": status}
        assert get("fastovms_http_requests_total", labels) == count
    duration = "fastovms_http_request_duration_seconds"
    assert get(f"{duration}_count", {"route": "/a"}) == 2
    assert get(f"{duration}_bucket", {"route": "/a", "le": "0.025"}) == 1
    assert get(f"{duration}_sum", {"route": "/a"}) == 9.02
