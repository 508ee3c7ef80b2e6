"""The Responses API over WebSocket: `GET /responses` with an upgrade.

A `response.create` message has the body of `POST /responses` and is answered by that endpoint's
handler, with the same limits and errors; each event of its stream is a message. Responses on one
connection run one after another. While the connection is open, its last response that was not
stored can be continued with `previous_response_id` (OpenAI's WebSocket mode, openai-python 3.57).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from mmap import mmap
from typing import Any, Final

import msgspec
import orjson

from fastovms.api.body import LARGE, BodyReader, decode, wrong
from fastovms.api.dialect import render_error
from fastovms.api.endpoint import MAX_ID
from fastovms.errors import InvalidField, RequestError
from fastovms.http.messages import Exchange, Handler, HeaderPairs, Request, Response, StreamHead
from fastovms.http.websocket import GOING_AWAY, RESTART, WebSocket, handshake_fault, open_websocket
from fastovms.parts.responses.request import CreateMessage
from fastovms.state.store import StoredItem

logger = logging.getLogger(__name__)

_MAX_PENDING: Final = 16
"""The maximum number of `response.create` messages that wait for the running response."""

_ITEM_BYTES: Final = 256
"""The bytes of memory that an item takes besides its JSON."""

_CREATE: Final = "response.create"
_CANCEL: Final = "response.cancel"


class _Outline(msgspec.Struct):
    """The members of a message that determine how it is handled, of any type."""

    type: Any = None
    stream_id: Any = None
    response_id: Any = None


class _EventStream:
    """Implements `http.messages.Stream`: sends each event as a message, with the `stream_id` of its
    turn."""

    def __init__(self, socket: WebSocket, turn: Turn) -> None:
        self._socket = socket
        self._turn = turn
        self.started = False
        self.closed = False
        self.aborted = False

    @property
    def writable(self) -> bool:
        return not self.closed and self._socket.writable

    @property
    def buffered(self) -> int:
        return 0 if self.closed else self._socket.buffered

    @property
    def on_writable(self) -> Callable[[], None] | None:
        return self._socket.on_writable

    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._socket.on_writable = callback

    def set_headers(self, headers: HeaderPairs) -> None:
        """Does nothing, because a message has no headers."""

    def send(self, data: bytes) -> None:
        self.started = True
        suffix, stream_id = "}", self._turn.stream_id
        if stream_id is not None:
            suffix = f',"stream_id":{orjson.dumps(stream_id).decode()}}}'
        for frame in data.split(b"\n\n"):
            event = frame.partition(b"data: ")[2]
            if event.startswith(b"{"):  # skips comments and [DONE]
                self._socket.send(event[:-1].decode() + suffix)

    def finish(self, data: bytes = b"") -> None:
        self.send(data)
        self.end()

    def abort(self) -> None:
        self.aborted = True
        self.end()

    def end(self) -> None:
        """Ignores all further events. Idempotent."""
        self.closed = True
        self.on_writable = None


class UnstoredResponse:
    """The last response on a connection that is not stored, which the next request may continue.
    Its memory counts as memory of request bodies, because the client would otherwise send the items
    again."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._id = ""
        self._items: Sequence[StoredItem] = ()
        self._size = 0

    def find(self, id: str | None) -> Sequence[StoredItem] | None:
        """Returns the items of the response with this id and of those that it continues; None =
        another response, or none, is kept."""
        return self._items if id and id == self._id else None

    def keep(self, id: str, items: Sequence[StoredItem]) -> None:
        """Drops the kept response, and keeps this one unless it is too large."""
        self.clear()
        size = sum(len(item.body) + _ITEM_BYTES for item in items)
        if size > self._socket.config.largest_body or not self._socket.take(size):
            logger.warning(
                "response %s cannot be continued: its %d bytes exceed the limit",
                id,
                size,
            )
            return
        self._id, self._items, self._size = id, items, size

    def clear(self) -> None:
        """Drops the response and releases its memory."""
        self._socket.give_back(self._size)
        self._id, self._items, self._size = "", (), 0


class Turn:
    """One `response.create` message, as the handler of `POST /responses` sees it.

    Attributes:
        message: the message's bytes, whose memory is released at the end of the turn.
        stream_id: the id that each event repeats; None = not given, or not known yet.
        unstored: the kept response that this turn may continue and will replace.
        response_id: the id of the turn's response; None = not known yet.
        may_be_cancelled: whether the response has not ended.
        is_cancelled: whether the client has cancelled the response.
    """

    def __init__(
        self, message: bytes | mmap, stream_id: str | None, unstored: UnstoredResponse
    ) -> None:
        self.message = message
        self.stream_id = stream_id
        self.unstored = unstored
        self.response_id: str | None = None
        self.may_be_cancelled = True
        self.is_cancelled = False

    def read(self, body: CreateMessage) -> CreateMessage:
        """Returns the request for the response. Raises InvalidField if a member of the message is
        invalid."""
        if body.stream_id is not None and len(body.stream_id) > MAX_ID:
            raise InvalidField.about(
                "stream_id", f"must have at most {MAX_ID} characters, not {len(body.stream_id)}"
            )
        self.stream_id = body.stream_id
        if body.type == _CANCEL:
            raise InvalidField(f"a {_CANCEL} message must have less than {LARGE} bytes")
        _check_type(body.type)
        if body.background:
            raise InvalidField.about("background", "cannot be used on a WebSocket connection")
        options = body.prompt_cache_options
        if body.generate is False:
            options = {**(options or {}), "prewarm": True}
        return msgspec.structs.replace(body, stream=True, prompt_cache_options=options)


def _check_type(kind: object) -> None:
    if kind not in (_CREATE, _CANCEL):
        raise wrong("type", f"{_CREATE} or {_CANCEL}", kind)


class _Session:
    """One WebSocket connection. `create` is the handler of `POST /responses`."""

    def __init__(
        self, socket: WebSocket, request: Request, create: Handler, bodies: BodyReader
    ) -> None:
        self._socket = socket
        self._request = request
        self._create = create
        self._bodies = bodies
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + socket.config.websocket_max_age
        self._pending: deque[Turn] = deque()
        self._running: asyncio.Task[None] | None = None
        self._turn: Turn | None = None
        self._unstored = UnstoredResponse(socket)
        self._num_requests = 0
        socket.on_fault = self._on_fault

    async def run(self) -> None:
        """Serves the connection until it ends."""
        receiving: asyncio.Task[bytes | mmap | None] | None = None
        try:
            while True:
                if receiving is None:
                    receiving = asyncio.ensure_future(self._socket.receive())
                waiting = {receiving, *filter(None, (self._running,))}
                timeout = None if self._running is not None else self._time_left()
                done, _ = await asyncio.wait(
                    waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    self._end_of_time()
                    return
                if self._running is not None and self._running in done:
                    self._running.result()
                    self._running = self._turn = None
                if receiving in done:
                    message = receiving.result()
                    receiving = None
                    if message is None:
                        await self._end()
                        return
                    self._take(message)
                if self._running is None and self._pending:
                    self._turn = self._pending.popleft()
                    self._running = asyncio.ensure_future(self._answer(self._turn))
        finally:
            for turn in self._pending:
                self._socket.give_back(len(turn.message))
            self._unstored.clear()
            for task in filter(None, (receiving, self._running)):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    self._socket.give_back(len(await task or b""))

    def _time_left(self) -> float:
        return max(
            0.0, min(self._socket.config.websocket_idle_timeout, self._ends_at - self._loop.time())
        )

    def _end_of_time(self) -> None:
        if self._loop.time() < self._ends_at:
            self._socket.close(GOING_AWAY, "no message for too long")
            return
        message = "the connection has reached its maximum age: open a new one"
        self._send_error(400, _error(400, message, code="websocket_connection_limit_reached"))
        self._socket.close(RESTART, "the connection has reached its maximum age")

    async def _end(self) -> None:
        """Ends a connection that the client has closed, or that is closed at the server's
        shutdown."""
        if self._socket.is_open:
            if self._running is not None:
                await self._running
                self._running = None
            self._socket.close(RESTART, "the server restarts")

    # Messages

    def _take(self, message: bytes | mmap) -> None:
        """Handles a cancellation at once, and queues other messages until their turn. A large
        message is not parsed before its turn."""
        outline = _Outline()
        try:
            if len(message) < LARGE:
                outline = decode(message, _Outline)
                _check_type(outline.type)
        except InvalidField as error:
            self._refuse(message, outline, str(error), param=error.param)
            return
        except RequestError:
            pass  # reported when its turn comes
        num_bytes = len(message) + sum(len(turn.message) for turn in self._pending)
        largest = self._socket.config.largest_body
        if outline.type == _CANCEL:
            self._cancel(message, outline)
        elif len(self._pending) >= _MAX_PENDING:
            reason = f"more than {_MAX_PENDING} responses wait on this connection"
            self._refuse(message, outline, reason, status=429)
        elif num_bytes > largest:
            reason = f"messages of more than {largest} bytes wait on this connection"
            self._refuse(message, outline, reason, status=429)
        else:
            turn = Turn(message, _stream_id(outline), self._unstored)
            self._pending.append(turn)

    def _cancel(self, message: bytes | mmap, outline: _Outline) -> None:
        """Cancels the running response; its last event reports that."""
        given, turn = outline.response_id, self._turn
        if (
            self._running is None
            or turn is None
            or not turn.may_be_cancelled
            or given not in (None, turn.response_id)
        ):
            self._refuse(message, outline, "no such response is running", param="response_id")
            return
        self._socket.give_back(len(message))
        turn.may_be_cancelled, turn.is_cancelled = False, True
        self._running.cancel()

    def _refuse(
        self,
        message: bytes | mmap,
        outline: _Outline,
        reason: str,
        *,
        status: int = 400,
        param: str | None = None,
    ) -> None:
        """Sends an error for a message that does not get a turn."""
        self._socket.give_back(len(message))
        self._send_error(status, _error(status, reason, param=param), _stream_id(outline))

    def _on_fault(self, status: int, message: str) -> None:
        self._send_error(status, _error(status, message))

    def _send_error(
        self, status: int, error: Mapping[str, Any], stream_id: str | None = None
    ) -> None:
        event: dict[str, Any] = {"type": "error", "status": status, "error": error}
        if stream_id is not None:
            event["stream_id"] = stream_id
        self._socket.send(orjson.dumps(event).decode())

    # Responses

    async def _answer(self, turn: Turn) -> None:
        """Answers one message as `POST /responses` is answered."""
        socket, start = self._socket, self._socket.num_sent
        stream = _EventStream(socket, turn)
        request = self._new_request(turn, stream)
        status, is_complete = 200, False
        try:
            response = await _awaited(self._create(request))
            if response is not None:
                status = response.status
                request.log_fields.update(response.log_fields)
                stream_id = await self._stream_id_of(turn, request)
                self._send_error(status, _error_of(response), stream_id)
            elif turn.is_cancelled:
                status = 499
            is_complete = response is not None or not stream.aborted
            if stream.aborted:
                self._send_error(500, _error(500, "the response failed"), turn.stream_id)
        except asyncio.CancelledError:
            status = 499
            if not (socket.is_open and turn.is_cancelled):
                raise
            error = _error(400, "the response was cancelled before it began", code="cancelled")
            self._send_error(400, error, turn.stream_id)
        finally:
            stream.end()
            socket.give_back(len(turn.message))
            num_bytes = socket.num_sent - start
            duration = self._loop.time() - request.received_at
            socket.report(Exchange(request, status, num_bytes, duration, is_complete))

    async def _stream_id_of(self, turn: Turn, request: Request) -> str | None:
        """Returns the `stream_id` of a turn that has failed, perhaps before its message was
        parsed."""
        if turn.stream_id is None and len(turn.message) >= LARGE:
            with suppress(Exception):
                return _stream_id(await self._bodies.read(request, _Outline))
        return turn.stream_id

    def _new_request(self, turn: Turn, stream: _EventStream) -> Request:
        outer = self._request
        self._num_requests += 1
        request = Request(
            "POST",
            outer.raw_path,
            headers=outer.headers,
            body=turn.message,
            client=outer.client,
            id=f"{outer.id}-{self._num_requests}",
        )
        request.route = outer.route
        request.caller, request.trace = outer.caller, outer.trace
        request.received_at = self._loop.time()
        request.turn = turn

        def open_stream(request: Request, head: StreamHead, ping: bool) -> _EventStream:
            return stream

        request.open_stream = open_stream
        return request


async def _awaited(outcome: Any) -> Response | None:
    found: Response | None = await outcome if asyncio.iscoroutine(outcome) else outcome
    return found


def _stream_id(outline: _Outline) -> str | None:
    """Returns the `stream_id` of a message; None = not given, or invalid."""
    given = outline.stream_id
    return given if isinstance(given, str) and len(given) <= MAX_ID else None


_KINDS: Final = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}


def _error(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> Mapping[str, Any]:
    """Returns an error object in OpenAI's format."""
    kind = _KINDS.get(status, "invalid_request_error")
    return {"type": kind, "code": code, "message": message, "param": param}


def _error_of(response: Response) -> Mapping[str, Any]:
    """Returns the error object of an error response, in OpenAI's format for every dialect."""
    found = orjson.loads(response.body).get("error")
    return found if isinstance(found, dict) else _error(response.status, str(found))


def websocket_handler(create: Handler, bodies: BodyReader) -> Handler:
    """Returns the handler of `GET /responses`. `create` is the handler of `POST /responses`."""

    async def connect(request: Request) -> Response | None:
        if (fault := handshake_fault(request)) is not None:
            response = render_error(request, *fault)
            # RFC 9110 7.8 and RFC 6455 4.2.2
            headers = (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"))
            return replace(response, headers=response.headers + headers)
        await _Session(open_websocket(request), request, create, bodies).run()
        return None

    return connect
