"""Asks the server's own handlers what the lines of batches ask."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Final

from fastovms.batches.batch_line import AskLater, BatchLine, LineAnswer
from fastovms.errors import InvalidField, NotFound, RequestError
from fastovms.http.routing.messages import Headers, Request, Response
from fastovms.http.routing.router import Match, Router

LOWEST_PRIORITY: Final = 2**62
"""What puts a line behind everybody else who waits (see `engine.scheduling.waiting`)."""

_SENDER: Final = "batches:0"
"""Stands for the address of a client: all batches without a key share what one client may have."""

_LATER: Final = (429, 503)
_USUAL_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
_JSON: Final = Headers([("content-type", "application/json")])


class LineCaller:
    """Calls handlers as a connection would.

    Args:
        router: knows them by their paths.
        new_id: makes ids of requests.
        refuse: makes the answer to a request that an error ends, in the form of its path.
        has_failed: tells whether an engine has failed for good, which ends the process soon: its
            lines are for the next one.
    """

    def __init__(
        self,
        router: Router,
        new_id: Callable[[], str],
        refuse: Callable[[RequestError, Request], Response],
        has_failed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._router = router
        self._new_id = new_id
        self._refuse = refuse
        self._has_failed = has_failed

    async def ask(self, line: BatchLine, tenant: str) -> LineAnswer | AskLater:
        """Returns the answer to a line, or when to ask again where the server has no room for it,
        or its model cannot be had."""
        request = self._request(line, tenant)
        response = await self._answer(request, line)
        is_lost = response.status == 500 and self._has_failed()
        if response.status in _LATER or is_lost:
            return AskLater(_delay(response))
        return LineAnswer(response.status, request.id, bytes(response.body) or b"null")

    def _request(self, line: BatchLine, tenant: str) -> Request:
        id = self._new_id()
        request = Request("POST", line.url, "", _JSON, line.body, client=_SENDER, id=id)
        request.tenant = tenant
        request.priority = LOWEST_PRIORITY
        request.received_at = asyncio.get_running_loop().time()
        return request

    async def _answer(self, request: Request, line: BatchLine) -> Response:
        if line.forbidden is not None:
            message = f"{line.forbidden} must not be true in a batch"
            return self._refuse(InvalidField(message, param=line.forbidden), request)
        found = self._router.match("POST", request.raw_path)
        if not isinstance(found, Match):
            return self._refuse(NotFound(f"no such path: {request.path}", param="url"), request)
        handler, request.route, request.path_params = found
        outcome = handler(request)
        response = await outcome if inspect.isawaitable(outcome) else outcome
        assert response is not None, "what is not streamed is answered by a response"
        return response


def _delay(response: Response) -> float:
    """Returns after how many seconds to ask again."""
    for name, value in response.headers:
        if name == "Retry-After" and value.isdigit():
            return min(float(value), _MAX_DELAY)
    return _USUAL_DELAY
