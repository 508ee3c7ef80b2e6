"""Answers for liveness, readiness, version and metrics: cheap answers that never wait for the
engine."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

import orjson
from prometheus_client import CollectorRegistry

from fastovms.api.admin.status import ServerStatus
from fastovms.api.wire.error_responses import render_error
from fastovms.http.routing.messages import Request, Response
from fastovms.telemetry.metrics import render

_OK: Final = Response(200)
_MAX_NAMES: Final = 200


class HealthRoutes:
    """Answers load balancers, orchestrators and monitoring."""

    def __init__(self, status: ServerStatus, registry: CollectorRegistry, version: str) -> None:
        self._status = status
        self._registry = registry
        self._version = Response(200, orjson.dumps({"version": version}))
        self._server = Response(
            200, orjson.dumps({"name": "fastovms", "version": version, "extensions": []})
        )

    def health(self, request: Request) -> Response:
        """Answers 200 with an empty body, or 503 while a model loads or when it can generate no
        more."""
        return _report(request, self._status.unhealthy)

    def ready(self, request: Request) -> Response:
        """Answers as `health` does, and 503 too once the server is about to shut down."""
        return _report(request, self._status.unready)

    def live(self, request: Request) -> Response:
        """Answers KServe's question for liveness: the process is there."""
        return _OK

    def version(self, request: Request) -> Response:
        return self._version

    def server(self, request: Request) -> Response:
        """Answers with KServe's server metadata."""
        return self._server

    def metrics(self, request: Request) -> Response:
        """Answers with all series, or with those that `name[]` names, as servers that use
        Prometheus' client for Python do."""
        try:
            query = parse_qs(request.query, max_num_fields=_MAX_NAMES)
        except ValueError:
            return render_error(
                request, 400, f"the query must have at most {_MAX_NAMES} parameters"
            )
        accept = request.headers.get("accept") or ""
        body, content_type = render(self._registry, accept, query.get("name[]", ()))
        return Response(200, body, content_type)


def _report(request: Request, trouble: str | None) -> Response:
    return _OK if trouble is None else render_error(request, 503, trouble)
