"""Says which endpoints the lines of batches may ask, which models they may name, and how lines are
refused."""

from __future__ import annotations

from typing import Final

from fastovms.api.serving.served import ServedModels
from fastovms.api.wire.bodies.json_scan import scan
from fastovms.api.wire.dialect import DIALECTS, dialect_of
from fastovms.api.wire.error_responses import error_response
from fastovms.batches.input_check import InputRules
from fastovms.errors import RequestError
from fastovms.http.routing.messages import Request, Response
from fastovms.http.routing.router import Match, Router

PATHS: Final = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/messages",
    "/rerank",
    "/responses",
    "/score",
)
"""The endpoints, of those that the server has, behind the prefix of a dialect."""

_URLS: Final = frozenset(
    f"{prefix}{path}" for dialect in DIALECTS for prefix in dialect.prefixes for path in PATHS
) | {"/v2/rerank"}


def refuse_line(error: RequestError, request: Request) -> Response:
    """Returns the answer to a line that is not asked, in the form of the errors of its path."""
    return error_response(error, dialect_of(request.path), request.id)


class BatchEndpoints:
    """The endpoints of this server that batches may ask."""

    def __init__(self, router: Router, models: ServedModels, max_lines: int) -> None:
        self._router = router
        self._models = models
        self._max_lines = max_lines

    def exists(self, url: str) -> bool:
        return url in _URLS and isinstance(self._router.match("POST", url), Match)

    def all(self) -> list[str]:
        """Returns those of OpenAI's dialect, for messages."""
        return [f"/v1{path}" for path in PATHS if self.exists(f"/v1{path}")]

    def rules(self, endpoint: str | None) -> InputRules:
        """Returns what the lines of a batch must be.

        Args:
            endpoint: of all of them; None = they may differ.
        """
        return InputRules(endpoint, self.exists, self._find_model, self._max_lines, scan)

    def _find_model(self, name: str | None, url: str) -> str | None:
        try:
            return self._models.find(name, dialect_of(url)).name
        except RequestError:
            return None
