"""Binds an API handler to a dialect: what it raises becomes that dialect's error response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import error_response
from fastovms.http.routing.messages import Handler, Request, Response

ApiHandler = Callable[[Request, Dialect], Awaitable[Response | None]]


def endpoint(handler: ApiHandler, dialect: Dialect) -> Handler:
    """Returns the `Handler` of one route. Cancellation passes through."""

    async def answer(request: Request) -> Response | None:
        try:
            return await handler(request, dialect)
        except Exception as error:
            return error_response(error, dialect)

    return answer
