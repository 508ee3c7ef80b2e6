"""Lets requests wait while the models are loaded at start: agents give up after a few refusals."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import Any, Final

import msgspec

from fastovms.api.admin.status import ServerStatus
from fastovms.api.wire.bodies.body_reader import BodyReader
from fastovms.api.wire.dialect import dialect_of
from fastovms.api.wire.error_responses import error_response, last_frames, render_error
from fastovms.errors import BackendUnavailable, Overloaded, RequestError
from fastovms.http.routing.messages import Request, Response
from fastovms.http.routing.router import MethodNotAllowed, Router

_STREAMED: Final = ("/completions", "/messages", "/responses")
"""How paths end whose answers may be event streams."""

_MAX_WAITING: Final = 1024


class _Outline(msgspec.Struct, frozen=True):
    stream: Any = None


class StartWait:
    """The handler of all requests that come before the routes of the models are known. A client
    that wants an event stream gets comments meanwhile.

    Args:
        timeout: seconds for which a request may wait.
    """

    def __init__(
        self, status: ServerStatus, router: Router, bodies: BodyReader, timeout: float
    ) -> None:
        self._status = status
        self._router = router
        self._bodies = bodies
        self._timeout = timeout
        self._num_waiting = 0

    async def __call__(self, request: Request) -> Response | None:
        dialect = dialect_of(request.path)
        try:
            await self._wait(request)
            self._status.check()
        except (BackendUnavailable, Overloaded) as error:
            stream = request.early_stream
            if stream is None or not stream.started:
                return error_response(error, dialect, request.id)
            stream.finish(last_frames(error, dialect, request.id))
            return None
        found = self._router.match(request.method, request.raw_path)
        if found is None:
            return render_error(request, 404, f"no such path: {request.path}")
        if isinstance(found, MethodNotAllowed):
            return render_error(request, 405, f"POST is not allowed for {request.path}")
        handler, request.route, request.path_params = found
        answer = handler(request)
        return await answer if isawaitable(answer) else answer

    async def _wait(self, request: Request) -> None:
        """Returns when the models are loaded, or never will be.

        Raises:
            BackendUnavailable: loading takes too long.
            Overloaded: too many requests wait.
        """
        if self._num_waiting >= _MAX_WAITING:
            raise Overloaded(f"{_MAX_WAITING} requests wait for the model, which is the limit")
        self._num_waiting += 1
        try:
            if _may_be_streamed(request.path) and await self._streams(request):
                request.open_early()
            async with asyncio.timeout(self._timeout):
                await self._status.has_loaded.wait()
        except TimeoutError:
            raise BackendUnavailable(
                f"the model could not be loaded within {self._timeout:g} s", retry_after=10.0
            ) from None
        finally:
            self._num_waiting -= 1

    async def _streams(self, request: Request) -> bool:
        try:
            return (await self._bodies.read(request, _Outline)).stream is True
        except RequestError:  # the handler says what is wrong
            return False


def _may_be_streamed(path: str) -> bool:
    """Returns whether the path is one of those whose answers may be event streams."""
    return path.endswith(_STREAMED) and path.startswith("/v")
