"""Tests of `fastovms/service/export.py`."""

from __future__ import annotations

import logging
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fastovms.api.served import KnownModel, ServedModels
from fastovms.errors import ConfigurationError
from fastovms.http.messages import Exchange, Request
from fastovms.service.export import LoadedGraphs, OvmsMetrics, span_tracer
from tests.api.test_models import several_models


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
        (exchange(401), {}),
        (exchange(route="/v1/completions", model="m"), {"accepted": "Unary", "success": "Unary"}),
        (exchange(route="/v3/v1/responses", model="m"), {"accepted": "Unary", "success": "Unary"}),
        (exchange(route="/v3/tokenize", model="m"), {"accepted": "Unary", "success": "Unary"}),
        (exchange(400, route="/v3/tokenize", model="m"), {"accepted": "Unary", "fail": "Unary"}),
        (exchange(route="/v3/responses/input_tokens", model="m"), {}),
        (exchange(route="/v3/conversations"), {}),
        (exchange(route="/tokenize", model="m"), {}),
    ],
)  # fmt: skip
def test_exchange_increments_the_counters_of_its_method(told, counted):
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


def test_metrics_are_exported_with_names_and_labels_of_ovms():
    registry = CollectorRegistry()
    metrics = OvmsMetrics()
    registry.register(metrics)
    metrics(exchange(model="m"))
    text = generate_latest(registry).decode()
    labels = 'api="V3",interface="REST",method="Unary",name="m",version="1"'
    for name, value in (("accepted", 1), ("success", 1), ("fail", 0), ("rejected", 0)):
        assert f"\novms_requests_{name}{{{labels}}} {value}.0\n" in text


def test_loaded_graphs_are_exported_as_ovms_does():
    [there, *_] = several_models()[0].known
    models = ServedModels()
    models.set_known([there, KnownModel("away")])
    registry = CollectorRegistry()
    registry.register(LoadedGraphs(models))
    text = generate_latest(registry).decode()
    for name, value in ((there.name, 1), ("away", 0)):
        assert f'\novms_graph_loaded{{name="{name}"}} {value}.0\n' in text


# Whether spans are recorded.


ENDPOINT = "http://127.0.0.1:9"
NAMED = {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}


@pytest.mark.parametrize(
    ("endpoint", "environment", "is_wanted"),
    [
        (None, {}, False),
        (ENDPOINT, {}, True),
        (None, NAMED, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ENDPOINT}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (None, {**NAMED, "OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT, {"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_spans_are_recorded_if_an_endpoint_is_configured(
    endpoint: str | None, environment: dict[str, str], is_wanted: bool
) -> None:
    with span_tracer(endpoint, environment) as tracer:
        assert (tracer is not None) is is_wanted


def test_otlp_over_another_protocol_is_refused() -> None:
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with (
        pytest.raises(ConfigurationError, match="must be http/protobuf, not grpc"),
        span_tracer(ENDPOINT, environment),
    ):
        pass


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastovms.service.open_telemetry", None)


@pytest.mark.usefixtures("without_the_extra")
def test_traces_flag_without_the_extra_names_it() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"pip install '\.\[otel\]'"),
        span_tracer(ENDPOINT, {}),
    ):
        pass


@pytest.mark.usefixtures("without_the_extra")
def test_otlp_variables_without_the_extra_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), span_tracer(None, NAMED) as tracer:
        assert tracer is None
    assert "pip install" in caplog.text
