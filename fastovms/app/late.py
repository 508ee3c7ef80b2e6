"""Routes whose code is imported, in a thread, by the first request that needs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib import import_module
from inspect import isawaitable
from typing import Any

from fastovms.api.dialect import dialect_of, error_response
from fastovms.errors import BackendUnavailable
from fastovms.http.messages import BodySink, Handler, Request, Response, UploadHandler
from fastovms.http.routing import Match, Router

logger = logging.getLogger(__name__)

Entry = Callable[..., Any]


def imported(entry: str) -> Entry:
    """Imports and returns the function at "module:function", below the package."""
    module, _, name = entry.partition(":")
    function: Entry = getattr(import_module(f"fastovms.{module}"), name)
    return function


class LazyPart:
    """A part of the API that is imported when it is first needed.

    Args:
        begin: gets the imported entry, and replaces the placeholder routes; runs on the event loop.
    """

    def __init__(self, name: str, entry: str, begin: Callable[[Entry], None]) -> None:
        self._name = name
        self._entry = entry
        self._begin = begin
        self._loading: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Imports and starts the part, if it has not been loaded; a failed import is retried.
        Raises BackendUnavailable if the import fails."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        # Shielded, because other requests may wait for the import if this client disconnects.
        await asyncio.shield(self._loading)

    def load_now(self) -> None:
        """Imports and starts the part in the calling thread."""
        self._begin(imported(self._entry))

    async def _load(self) -> None:
        try:
            self._begin(await asyncio.to_thread(imported, self._entry))
        except Exception as error:
            self._loading = None
            logger.exception(
                "the feature %s is not available: its module cannot be imported", self._name
            )
            message = f"this server cannot import its feature {self._name}: {type(error).__name__}"
            raise BackendUnavailable(message) from error

    def add_route(self, router: Router, route: str, max_form: int | None = None) -> None:
        """Adds a placeholder route whose first request loads the part.

        Args:
            route: "METHOD PATTERN".
            max_form: the maximum size of a form in bytes; None = the body is not a form.
        """

        async def answer(request: Request) -> Response | None:
            try:
                if isinstance(request.sink, DeferredSink) and request.sink.opening is not None:
                    await asyncio.shield(request.sink.opening)
                await self.load()
            except BaseException as error:
                request.release()
                if isinstance(error, Exception):
                    return _refusal(request, error)
                raise
            if isinstance(request.sink, DeferredSink):  # the sink has answered the request
                return request.sink.fault
            outcome = _handler_of(router, request)(request)
            return await outcome if isawaitable(outcome) else outcome

        async def open_late(request: Request, sink: DeferredSink) -> None:
            opened: BodySink | Response
            try:
                await self.load()
                handler = _handler_of(router, request)
                assert isinstance(handler, UploadHandler)
                opened = handler.open_sink(request)
            except Exception as error:
                opened = _refusal(request, error)
            sink.open(request, opened)

        def open_sink(request: Request) -> BodySink:
            assert max_form is not None
            sink = DeferredSink(max_form)
            sink.opening = asyncio.ensure_future(open_late(request, sink))
            return sink

        handler: Handler = answer
        if max_form is not None:
            handler = UploadHandler(open_sink, answer)
        method, pattern = route.split(" ")
        router.add(method, pattern, handler)


def _handler_of(router: Router, request: Request) -> Handler:
    found = router.match(request.method, request.raw_path)
    assert isinstance(found, Match)
    return found.handler


def _refusal(request: Request, error: Exception) -> Response:
    return error_response(error, dialect_of(request.path), request.id)


class DeferredSink:
    """Buffers the beginning of a form until the part that receives it is imported; implements
    `BodySink`.

    Attributes:
        opening: the task that imports the part and opens its sink.
    """

    min_rate = 1.0  # no minimum rate while the sink is full

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.fault: Response | None = None
        self.on_change: Callable[[], None] | None = None
        self.opening: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        return self.fault is None

    def write(self, piece: bytes) -> None:
        if self.fault is None:
            self._pieces.append(piece)

    def close(self) -> None:
        self._is_closed = True
        self._pieces.clear()

    def open(self, request: Request, opened: BodySink | Response) -> None:
        """Passes the buffered data to the part's sink, which receives the rest of the form."""
        if isinstance(opened, Response):
            self.fault = opened
        elif self._is_closed:
            opened.close()
            return
        else:
            opened.on_change = self.on_change
            request.sink = opened
            for piece in self._pieces:
                opened.write(piece)
        self._pieces.clear()
        if self.on_change is not None and not self._is_closed:
            self.on_change()
