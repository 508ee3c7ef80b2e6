"""Decides whether spans are recorded, and where they are sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from fastovms.errors import ConfigurationError
from fastovms.telemetry.tracing import Tracer

logger = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SPOKEN: Final = "http/protobuf"
_MISSING: Final = (
    "traces need OpenTelemetry, which is not installed: pip install 'fastovms[otel]' brings it"
)


@contextmanager
def span_tracer(endpoint: str | None, environment: Mapping[str, str]) -> Iterator[Tracer | None]:
    """Yields what records spans and sends them when it ends; None = nobody asks for them.

    Args:
        endpoint: a collector's address; None = the one that the environment names, if it does.

    Raises:
        ConfigurationError: `endpoint` is given, and nothing can be sent there.
    """
    if not _is_wanted(endpoint, environment):
        yield None
        return
    protocol = next(filter(None, map(environment.get, _PROTOCOLS)), _SPOKEN)
    if protocol != _SPOKEN:
        raise ConfigurationError(f"traces are sent by {_SPOKEN}, and not by {protocol}")
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
