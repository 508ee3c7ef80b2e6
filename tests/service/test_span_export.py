"""Whether spans are recorded."""

from __future__ import annotations

import logging
import sys

import pytest

from fastovms.errors import ConfigurationError
from fastovms.service.span_export import span_tracer

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
def test_who_asks_for_spans(
    endpoint: str | None, environment: dict[str, str], is_wanted: bool
) -> None:
    with span_tracer(endpoint, environment) as tracer:
        assert (tracer is not None) is is_wanted


def test_another_protocol_is_refused() -> None:
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with (
        pytest.raises(ConfigurationError, match="http/protobuf, and not by grpc"),
        span_tracer(ENDPOINT, environment),
    ):
        pass


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastovms.service.open_telemetry", None)


@pytest.mark.usefixtures("without_the_extra")
def test_who_asks_by_the_flag_is_told_what_to_install() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"pip install 'fastovms\[otel\]'"),
        span_tracer(ENDPOINT, {}),
    ):
        pass


@pytest.mark.usefixtures("without_the_extra")
def test_an_environment_made_for_others_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), span_tracer(None, NAMED) as tracer:
        assert tracer is None
    assert "pip install" in caplog.text
