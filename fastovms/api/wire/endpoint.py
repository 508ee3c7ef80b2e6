"""Binds an API handler to a dialect: what it raises becomes that dialect's error response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import error_response, last_frames, log_fields_of
from fastovms.http.routing.messages import Handler, Request, Response

ApiHandler = Callable[[Request, Dialect], Awaitable[Response | None]]


def endpoint(handler: ApiHandler, dialect: Dialect) -> Handler:
    """Returns the `Handler` of one route. Cancellation passes through. What the request holds is
    given back at its end."""

    async def answer(request: Request) -> Response | None:
        try:
            return await handler(request, dialect)
        except Exception as error:
            stream = request.early_stream
            if stream is None or not stream.started:
                return error_response(error, dialect, request.id)
            request.log_fields.update(log_fields_of(error))
            stream.finish(last_frames(error, dialect, request.id))
            return None
        finally:
            request.release()

    return answer
