"""Knows whether the server takes requests at the moment, and if not, why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from fastovms.api.serving.served import ServedModels
from fastovms.api.wire.dialect import dialect_of
from fastovms.api.wire.error_responses import error_response
from fastovms.errors import BackendUnavailable
from fastovms.http.routing.messages import Request, Response

HEALTH_PATHS: Final = ("/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready")
"""The paths that are open to everybody, always."""

DOCS_PATHS: Final = ("/openapi.json", "/docs")
"""The paths of the API's description, which are open to everybody where they are served."""

_ALWAYS_ANSWERED: Final = frozenset({*HEALTH_PATHS, "/metrics", "/version", "/v2"})


class ServerPhase(Enum):
    """The phases of the server's life.

    LOADING: there is no model yet. LEAVING: whatever still comes is served, but balancers are asked
    to send no more. CLOSING: the time for that is over; what still runs ends with an error, and
    what is new is refused.
    """

    LOADING = "the model is loading"
    SERVING = "serving"
    LEAVING = "the server is about to shut down"
    CLOSING = "the server is shutting down"


# Look-ups in an Enum class are slow, and every request asks.
_LOADING, _SERVING, _LEAVING = ServerPhase.LOADING, ServerPhase.SERVING, ServerPhase.LEAVING


class ServerStatus:
    """Answers what health checks report and what admits requests.

    Args:
        may_wait: returns whether a request is admitted while the models are loaded at start, since
            its handler waits for them.

    Attributes:
        models: None until they are loaded.
        has_loaded: set once the phase is no longer LOADING.
    """

    def __init__(self, may_wait: Callable[[Request], bool] = lambda request: False) -> None:
        self._phase = ServerPhase.LOADING
        self._may_wait = may_wait
        self.models: ServedModels | None = None
        self.has_loaded = asyncio.Event()

    @property
    def phase(self) -> ServerPhase:
        return self._phase

    @phase.setter
    def phase(self, phase: ServerPhase) -> None:
        self._phase = phase
        if phase is not ServerPhase.LOADING:
            self.has_loaded.set()

    @classmethod
    def serving(cls, models: ServedModels) -> ServerStatus:
        status = cls()
        status.open(models)
        return status

    def open(self, models: ServedModels) -> None:
        """Takes note that the models are loaded; requests are welcome."""
        self.models = models
        self.phase = ServerPhase.SERVING

    @property
    def failure(self) -> str | None:
        """Why one of the models can generate no more, or None while all is well."""
        failure = None if self.models is None else self.models.failure
        return None if failure is None else f"the engine has failed: {failure}"

    @property
    def unhealthy(self) -> str | None:
        """Returns why a request would fail that came now over an open connection, or None. A server
        that leaves is healthy."""
        return self.failure or (
            ServerPhase.LOADING.value if self.phase is ServerPhase.LOADING else None
        )

    @property
    def unready(self) -> str | None:
        """Returns why balancers should send their requests elsewhere, or None."""
        return self.failure or (None if self.phase is ServerPhase.SERVING else self.phase.value)

    def admit(self, request: Request) -> Response | None:
        """Refuses what cannot be served now; an `http.messages.Check`."""
        if self._refusal is None or request.path in _ALWAYS_ANSWERED:
            return None
        if self._phase is _LOADING and self._may_wait(request):
            return None
        error = BackendUnavailable(self._refusal)
        return error_response(error, dialect_of(request.path), request.id)

    def check(self) -> None:
        """Raises BackendUnavailable where nothing can be served now."""
        if self._refusal is not None:
            raise BackendUnavailable(self._refusal)

    @property
    def _refusal(self) -> str | None:
        phase = self._phase
        return self.failure if phase is _SERVING or phase is _LEAVING else phase.value
