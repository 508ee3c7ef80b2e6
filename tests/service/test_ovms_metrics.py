from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fastovms.http.routing.exchange import Exchange
from fastovms.http.routing.messages import Request
from fastovms.service.ovms_metrics import OvmsMetrics


def exchange(status=200, *, route="/v3/completions", method="POST", completed=True, **log_fields):
    request = Request(method, route)
    request.route = route
    request.log_fields.update(log_fields)
    return Exchange(request, status, 100, 0.1, completed)


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (exchange(model="m", stream=False), {"accepted": "Unary", "success": "Unary"}),
        (exchange(model="m", stream=True), {"accepted": "Stream", "success": "Stream"}),
        (
            exchange(model="m", stream=True, completed=False),
            {"accepted": "Stream", "fail": "Stream"},
        ),
        (exchange(400, model="m", stream=False), {"accepted": "Unary", "fail": "Unary"}),
        (exchange(412), {}),
        (exchange(412, model="m", stream=False), {}),
        (exchange(404), {}),
        (exchange(401), {}),
        (exchange(route="/v1/completions", model="m"), {"accepted": "Unary", "success": "Unary"}),
        (exchange(route="/v1/chat/completions", model="m", stream=True),
         {"accepted": "Stream", "success": "Stream"}),
        (exchange(route="/v3/v1/responses", model="m"), {"accepted": "Unary", "success": "Unary"}),
        (exchange(route="/v3/tokenize", model="m"), {"accepted": "Unary", "success": "Unary"}),
        (exchange(400, route="/v3/tokenize", model="m"), {"accepted": "Unary", "fail": "Unary"}),
        (exchange(route="/v3/responses/input_tokens", model="m"), {}),
        (exchange(route="/v3/conversations"), {}),
        (exchange(route="/tokenize", model="m"), {}),
        (exchange(route="/v3/models", method="GET"), {}),
    ],
)  # fmt: skip
def test_counts(told, counted):
    registry = CollectorRegistry()
    metrics = OvmsMetrics()
    registry.register(metrics)
    metrics(told)
    samples = {
        sample.name.removeprefix("ovms_requests_"): sample.labels["method"]
        for family in registry.collect()
        for sample in family.samples
        if sample.value == 1
    }
    assert samples == counted


def test_names():
    registry = CollectorRegistry()
    metrics = OvmsMetrics()
    registry.register(metrics)
    metrics(exchange(model="m"))
    text = generate_latest(registry).decode()
    labels = 'api="V3",interface="REST",method="Unary",name="m",version="1"'
    for name, value in (("accepted", 1), ("success", 1), ("fail", 0), ("rejected", 0)):
        assert f"\novms_requests_{name}{{{labels}}} {value}.0\n" in text
