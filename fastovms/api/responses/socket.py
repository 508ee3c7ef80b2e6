"""The Responses API over WebSocket: `GET /responses` with an upgrade.

A `response.create` message has the body of `POST /responses`, and is answered by that handler: each
event of its stream is a message. Responses of one connection run one after the other. The last one
that was not stored can be continued by `previous_response_id` as long as the connection is open
(OpenAI's WebSocket mode, openai-python 3.57).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import orjson

from fastovms.api.dialect import render_error
from fastovms.http.messages import Exchange, Handler, HeaderPairs, Request, Response, StreamHead
from fastovms.http.websocket import GOING_AWAY, RESTART, WebSocket, handshake_fault

_MAX_PENDING: Final = 16
"""`response.create` messages that may wait for the running response."""

_CREATE: Final = "response.create"
_CANCEL: Final = "response.cancel"
_WITH_RESPONSE: Final = (
    b"event: response.created\n",
    b"event: response.in_progress\n",
    b"event: response.queued\n",
    b"event: response.completed\n",
    b"event: response.incomplete\n",
    b"event: response.failed\n",
)


class _EventStream:
    """Implements `http.messages.Stream`: sends each event as a message.

    Args:
        on_event: returns what is sent in place of an event with a response.
        stream_id: is added to each event; None = nothing is.
    """

    def __init__(
        self,
        socket: WebSocket,
        on_event: Callable[[dict[str, Any]], dict[str, Any]],
        stream_id: str | None,
    ) -> None:
        self._socket = socket
        self._on_event = on_event
        self._suffix = "}"
        if stream_id is not None:
            self._suffix = f',"stream_id":{orjson.dumps(stream_id).decode()}}}'
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
        """A message has no headers."""

    def send(self, data: bytes) -> None:
        self.started = True
        for frame in data.split(b"\n\n"):
            event, _, rest = frame.partition(b"data: ")
            if not rest.startswith(b"{"):
                continue  # a comment, or the end of the stream
            if event in _WITH_RESPONSE:
                rest = orjson.dumps(self._on_event(orjson.loads(rest)))
            self._socket.send(rest[:-1].decode() + self._suffix)

    def finish(self, data: bytes = b"") -> None:
        self.send(data)
        self._end()

    def abort(self) -> None:
        self.aborted = True
        self._end()

    def _end(self) -> None:
        self.closed = True
        self.on_writable = None


class _Turn:
    """One `response.create` message.

    Attributes:
        response: the last response object that an event had; empty before the first one.
        is_cancelled: whether the client has cancelled it.
    """

    def __init__(self, body: dict[str, Any], input_items: Sequence[Any], *, previous: str | None):
        self.body = body
        self.input_items = input_items
        if body.pop("generate", None) is False:
            options = body.get("prompt_cache_options")
            options = options if isinstance(options, dict) else {}
            body["prompt_cache_options"] = {**options, "prewarm": True}
        self.stream_id = body.pop("stream_id", None)
        self._previous = previous
        self.response: dict[str, Any] = {}
        self.is_cancelled = False

    def on_event(self, event: dict[str, Any]) -> dict[str, Any]:
        response = self.response = event["response"]
        if self._previous is not None:
            response["previous_response_id"] = self._previous
        return event


class _Session:
    """One connection.

    Args:
        create: answers `POST /responses`.
    """

    def __init__(self, socket: WebSocket, request: Request, create: Handler) -> None:
        self._socket = socket
        self._request = request
        self._create = create
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + socket.config.websocket_max_age
        self._pending: deque[_Turn] = deque()
        self._running: asyncio.Task[None] | None = None
        self._turn: _Turn | None = None
        self._last: tuple[str, Sequence[Any]] | None = None
        self._num_requests = 0

    async def run(self) -> None:
        """Serves the connection until it ends."""
        receiving: asyncio.Task[str | None] | None = None
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
            for task in filter(None, (receiving, self._running)):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def _time_left(self) -> float:
        return max(
            0.0, min(self._socket.config.websocket_idle_timeout, self._ends_at - self._loop.time())
        )

    def _end_of_time(self) -> None:
        if self._loop.time() < self._ends_at:
            self._socket.close(GOING_AWAY, "no message for too long")
            return
        error = {
            "type": "invalid_request_error",
            "code": "websocket_connection_limit_reached",
            "message": "the connection has reached its maximum age: open a new one",
            "param": None,
        }
        self._tell(400, error)
        self._socket.close(RESTART, "the connection has reached its maximum age")

    async def _end(self) -> None:
        """Ends the connection that the client has closed, or that the server's drain ends."""
        if self._socket.is_open:
            if self._running is not None:
                await self._running
                self._running = None
            self._socket.close(RESTART, "the server restarts")

    # Messages

    def _take(self, message: str) -> None:
        """Reads a message of the client. A wrong one is answered with an error event."""
        try:
            event = orjson.loads(message)
        except orjson.JSONDecodeError as error:
            self._refuse(f"the message is not JSON: {error}", code="invalid_json")
            return
        kind = event.get("type") if isinstance(event, dict) else None
        if kind == _CANCEL:
            self._cancel(event)
        elif kind != _CREATE:
            shown = repr(kind)[:100]
            self._refuse(f"type must be {_CREATE} or {_CANCEL}, not {shown}", param="type")
        elif len(self._pending) >= _MAX_PENDING:
            self._refuse(f"more than {_MAX_PENDING} responses wait on this connection", status=429)
        else:
            del event["type"]
            self._queue(event)

    def _queue(self, body: dict[str, Any]) -> None:
        if body.get("background"):
            self._refuse("background cannot be used on a WebSocket connection", param="background")
            return
        stream_id = body.get("stream_id")
        if stream_id is not None and not isinstance(stream_id, str):
            self._refuse("stream_id must be a string", param="stream_id")
            return
        self._pending.append(_Turn(body, (), previous=None))

    def _cancel(self, event: Mapping[str, Any]) -> None:
        """Cancels the running response; its last event says so."""
        given, turn = event.get("response_id"), self._turn
        running = None if turn is None else turn.response.get("id")
        if self._running is None or turn is None or given not in (None, running):
            self._refuse("no such response is running", param="response_id")
            return
        turn.is_cancelled = True
        self._running.cancel()

    def _refuse(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        kind = "invalid_request_error" if status < 429 else "rate_limit_error"
        self._tell(status, {"type": kind, "code": code, "message": message, "param": param})

    def _tell(self, status: int, error: Mapping[str, Any], stream_id: str | None = None) -> None:
        event: dict[str, Any] = {"type": "error", "status": status, "error": error}
        if stream_id is not None:
            event["stream_id"] = stream_id
        self._socket.send(orjson.dumps(event).decode())

    # Responses

    async def _answer(self, turn: _Turn) -> None:
        """Answers one message as `POST /responses` is answered."""
        self._expand(turn)
        socket, start = self._socket, self._socket.num_sent
        stream = _EventStream(socket, turn.on_event, turn.stream_id)
        request = self._new_request(turn, stream)
        status, is_complete = 200, False
        try:
            response = await _awaited(self._create(request))
            if response is not None:
                status = response.status
                request.log_fields.update(response.log_fields)
                self._tell(status, _error_of(response), turn.stream_id)
            is_complete = response is not None or not stream.aborted
            if stream.aborted:
                error = {"type": "server_error", "code": None, "message": "the response failed"}
                self._tell(500, {**error, "param": None}, turn.stream_id)
        except asyncio.CancelledError:
            status = 499
            if not (socket.is_open and turn.is_cancelled):
                raise
            self._tell_cancelled(turn)
        finally:
            stream._end()
            num_bytes = socket.num_sent - start
            duration = self._loop.time() - request.received_at
            socket.report(Exchange(request, status, num_bytes, duration, is_complete))
        self._remember(turn)

    def _new_request(self, turn: _Turn, stream: _EventStream) -> Request:
        outer = self._request
        self._num_requests += 1
        body = orjson.dumps({**turn.body, "stream": True})
        request = Request(
            "POST",
            outer.raw_path,
            headers=outer.headers,
            body=body,
            client=outer.client,
            id=f"{outer.id}-{self._num_requests}",
        )
        request.route = outer.route
        request.caller, request.trace = outer.caller, outer.trace
        request.received_at = self._loop.time()

        def open_stream(request: Request, head: StreamHead, ping: bool) -> _EventStream:
            return stream

        request.open_stream = open_stream
        return request

    def _expand(self, turn: _Turn) -> None:
        """Puts the items of the response that the message continues before its own, if only this
        connection knows that response."""
        body, given = turn.body, turn.body.get("input")
        items: list[Any] = []
        if isinstance(given, str):
            items = [{"type": "message", "role": "user", "content": given}]
        elif isinstance(given, list):
            items = given
        if self._last is not None and body.get("previous_response_id") == self._last[0]:
            turn._previous = body.pop("previous_response_id")
            items = [*self._last[1], *items]
            body["input"] = items
        turn.input_items = items

    def _remember(self, turn: _Turn) -> None:
        """Keeps the last response, if it is not stored."""
        response = turn.response
        if not response or response.get("status") == "failed" or response.get("store") is not False:
            return
        self._last = response["id"], [*turn.input_items, *response.get("output", ())]

    def _tell_cancelled(self, turn: _Turn) -> None:
        if not turn.response:
            message = "the response was cancelled before it began"
            error = {"type": "invalid_request_error", "code": "cancelled", "message": message}
            self._tell(400, {**error, "param": None}, turn.stream_id)
            return
        response = {
            **turn.response,
            "status": "cancelled",
            "incomplete_details": {"reason": "cancelled"},
        }
        event: dict[str, Any] = {"type": "response.incomplete", "response": response}
        if turn.stream_id is not None:
            event["stream_id"] = turn.stream_id
        self._socket.send(orjson.dumps(event).decode())


async def _awaited(outcome: Any) -> Response | None:
    """Returns the answer of a handler, which may be a coroutine."""
    found: Response | None = await outcome if asyncio.iscoroutine(outcome) else outcome
    return found


def _error_of(response: Response) -> Mapping[str, Any]:
    """Returns the error object of an answer, in OpenAI's form in every dialect."""
    found = orjson.loads(response.body).get("error")
    if isinstance(found, dict):
        return found
    return {"type": "invalid_request_error", "code": None, "message": str(found), "param": None}


def websocket_handler(create: Handler) -> Handler:
    """Returns the handler of `GET /responses`.

    Args:
        create: the handler of `POST /responses`.
    """

    async def connect(request: Request) -> Response | None:
        if (fault := handshake_fault(request)) is not None:
            response = render_error(request, *fault)
            # RFC 9110 7.8 and RFC 6455 4.2.2
            headers = (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"))
            return replace(response, headers=response.headers + headers)
        assert request.open_websocket is not None
        await _Session(request.open_websocket(request), request, create).run()
        return None

    return connect
