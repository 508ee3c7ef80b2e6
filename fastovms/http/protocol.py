"""The life of one connection: whose turn it is, what it waits for, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
from collections import deque
from enum import Enum, auto
from typing import NamedTuple, cast

from fastovms.http.framing import Fault, InputRefused, Phase, RequestParser
from fastovms.http.messages import Handler, HeaderPairs, Request, Response, Stream
from fastovms.http.response import CONTINUE
from fastovms.http.state import Exchange, ServerState
from fastovms.http.stream import ResponseStream

logger = logging.getLogger(__name__)

# Reading a refused body to its end keeps the connection; past this size it costs less to close.
_MAX_DISCARDED_BODY = 64 * 1024
_NEVER = math.inf
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CLIENT_CLOSED_REQUEST = 499
_EVENT_STREAM_FIELDS = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))


class _State(Enum):
    """OPEN serves. LINGERING has answered for good and discards input until the client, having
    read the answer, closes (RFC 9112 9.6). CLOSING waits for the transport. CLOSED is over."""

    OPEN = auto()
    LINGERING = auto()
    CLOSING = auto()
    CLOSED = auto()


class _Turn(NamedTuple):
    """A request and who answers it; `final` = the connection ends with the answer, `linger` =
    while the client may still be sending."""

    request: Request
    answer: Handler | Response
    final: bool
    linger: bool = False


class Connection(asyncio.Protocol):
    """Serves requests one after the other, in the order in which they came.

    There is one timer, aimed at whichever deadline is next. Deadlines are absolute: further bytes
    do not move them, only the end of what they wait for does. The timer may fire early, since a
    deadline that moves back leaves it alone, and is then aimed again.
    """

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._loop = server.loop
        self._config = server.config
        self._parser = RequestParser(server.config, server.body_budget, self)
        self._transport: asyncio.Transport | None = None
        self._state = _State.OPEN
        self._client = ""
        self._queue: deque[_Turn] = deque()
        self._turn: _Turn | None = None
        self._task: asyncio.Future[Response | None] | None = None
        self._stream: ResponseStream | None = None
        self._admitted: Handler | Response | None = None
        self._stream_is_final = False
        self._status = 0
        self._num_served = 0
        self._paused = False
        self._num_written = 0  # bytes, over the connection's life
        self._num_written_before = 0  # of those, before the current turn
        self._num_flushed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._read_deadline = _NEVER
        self._write_deadline = _NEVER
        self._timed_phase = Phase.BETWEEN
        self._body_started = 0.0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # uvloop's own low-water mark is 16 bytes.
        self._transport.set_write_buffer_limits(high=64 * 1024, low=16 * 1024)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._client = f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"
        self._aim(read=self._loop.time() + self._config.head_timeout)
        if not self._server.add(self):
            self._parser.close()
            self.on_fault(Fault(503, "too many connections", headers=(("Retry-After", "1"),)))

    def data_received(self, data: bytes) -> None:
        if self._state is not _State.OPEN:
            return
        self._parser.feed(data)
        if self._parser.awaiting_continue:
            self._send_continue()
        phase = self._parser.phase
        if phase is not self._timed_phase:
            self._time_phase(phase)

    def eof_received(self) -> None:
        """The client will send no more; with a request in flight that means it has gone. Returns
        None, which makes the transport flush and close."""
        self._parser.close()
        self._abandon()
        if self._state is not _State.CLOSED:
            self._state = _State.CLOSING
            self._aim(read=self._loop.time() + self._config.close_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.CLOSED
        self._parser.close()
        self._abandon()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        self._server.remove(self)

    def pause_writing(self) -> None:
        self._paused = True
        self._num_flushed = self._num_written - self.buffered
        self._aim(write=self._loop.time() + self._config.write_timeout)

    def resume_writing(self) -> None:
        self._paused = False
        self._write_deadline = _NEVER
        stream = self._stream
        if stream is not None and stream.on_writable is not None:
            stream.on_writable()
        self._next_turns()

    # The streams' and the server's side

    @property
    def writable(self) -> bool:
        return not self._paused and self._state is _State.OPEN

    @property
    def buffered(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._transport is None or self._state is not _State.OPEN:
            return
        self._num_written += len(data)
        self._transport.write(data)
        if (
            self._paused
            and self._stream is not None
            and self.buffered > self._config.max_write_buffer
        ):
            logger.warning("%s reads too slowly: its stream is cut", self._client)
            self.cut(reset=True)

    def drain(self) -> None:
        idle = self._turn is None and not self._queue and self._parser.phase is Phase.BETWEEN
        if idle and self._num_served and self._state is _State.OPEN:
            self._aim(read=self._loop.time() + self._config.drain_grace)

    def cut(self, *, reset: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        self._parser.close()
        if reset:
            self._state = _State.CLOSING
            sock = transport.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
        elif self._state is not _State.CLOSING:
            self._close()

    # The parser's side

    def on_head(self, request: Request, content_length: int | None) -> bool:
        server = self._server
        request.client = self._client
        request.id = server.request_id(request.headers.get("x-request-id"))
        request.received_at = self._loop.time()
        request._open_stream = self._open_stream
        admitted = self._admitted = server.dispatcher.admit(request)
        if not isinstance(admitted, Response) or content_length == 0:
            return True
        if content_length is None or content_length > _MAX_DISCARDED_BODY:
            self._take(_Turn(request, admitted, final=True, linger=True))
            raise InputRefused
        if self._parser.awaiting_continue:  # the answer tells the client not to send the body
            self._take(_Turn(request, admitted, final=True, linger=True))
            raise InputRefused
        return False

    def on_request(self, request: Request, keep_alive: bool) -> None:
        self._timed_phase = Phase.BETWEEN
        if len(self._queue) >= self._config.max_pipelined:
            self._server.body_budget.give_back(len(request.body))
            raise Fault(503, "too many pipelined requests", path=request.path)
        assert self._admitted is not None
        self._take(_Turn(request, self._admitted, final=not keep_alive))

    def on_fault(self, fault: Fault) -> None:
        if not fault.answered:
            logger.warning("%s: %s", self._client, fault.message)
            self.cut(reset=False)
            return
        request = Request("-", fault.path, client=self._client, id=self._server.request_id(None))
        request.received_at = self._loop.time()
        answer = self._server.dispatcher.error(
            fault.path, fault.status, fault.message, fault.headers
        )
        self._take(_Turn(request, answer, final=True, linger=True))

    # Turns

    def _take(self, turn: _Turn) -> None:
        if self._turn is None and not self._queue and not self._paused:
            self._begin(turn)
        else:
            self._queue.append(turn)

    def _next_turns(self) -> None:
        while self._queue and self._turn is None and self.writable:
            self._begin(self._queue.popleft())
        if self._parser.awaiting_continue:
            self._send_continue()

    def _begin(self, turn: _Turn) -> None:
        self._turn = turn
        self._num_written_before = self._num_written
        answer = turn.answer
        if isinstance(answer, Response):
            self._respond(answer)
            return
        try:
            outcome = answer(turn.request)
        except Exception as error:
            self._fail(error)
            return
        if isinstance(outcome, Response):
            self._respond(outcome)
        elif outcome is None:
            self._end_stream()
        else:
            if self._parser.phase is Phase.BETWEEN or self._parser.phase is Phase.DONE:
                self._read_deadline = _NEVER
            self._task = task = asyncio.ensure_future(outcome, loop=self._loop)
            self._server.tasks.add(task)
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Future[Response | None]) -> None:
        self._server.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self._task is not task:
            if error is not None:
                logger.error("a request failed after its client had gone", exc_info=error)
            return
        self._task = None
        if task.cancelled():
            self.cut(reset=True)
        elif error is not None:
            self._fail(error)
        else:
            response = task.result()
            if response is None:
                self._end_stream()
            else:
                self._respond(response)
        self._next_turns()

    def _open_stream(
        self, request: Request, status: int, content_type: str, headers: HeaderPairs, ping: bool
    ) -> Stream:
        turn = self._turn
        if turn is None or turn.request is not request or self._stream is not None:
            raise RuntimeError("a request is answered once, and while its handler runs")
        chunked = request.http_version != "1.0"
        is_event_stream = content_type.startswith("text/event-stream")
        if is_event_stream:
            headers = (*_EVENT_STREAM_FIELDS, *headers)
        self._status = status

        def render_head() -> bytes:
            self._stream_is_final = turn.final or not chunked or self._server.draining
            return self._server.writer.render_stream_head(
                status,
                content_type,
                headers,
                request,
                close=self._stream_is_final,
                chunked=chunked,
                extra=self._cross_origin_fields(request),
            )

        self._stream = ResponseStream(
            self,
            self._loop,
            render_head,
            chunked=chunked,
            muted=request.method == "HEAD",
            ping_interval=self._config.ping_interval if ping and is_event_stream else 0,
        )
        return self._stream

    def _fail(self, error: BaseException) -> None:
        """The handler raised."""
        assert self._turn is not None
        request = self._turn.request
        logger.error("%s %s failed", request.method, request.path, exc_info=error)
        if self._stream is not None and self._stream.started:
            self._stream.abort()
            self._finish(final=True, completed=False)
        else:
            self._respond(self._server.dispatcher.error(request.path, 500, "internal error"))

    def _respond(self, response: Response) -> None:
        turn, stream = self._turn, self._stream
        assert turn is not None
        if stream is not None:
            if stream.started:
                self._fail(RuntimeError("the handler returned a Response after streaming"))
                return
            stream.release()
            self._stream = None
        server = self._server
        self._status = response.status
        final = turn.final or server.draining
        extra = self._cross_origin_fields(turn.request)
        try:
            data = server.writer.render(response, turn.request, close=final, extra=extra)
        except ValueError as error:
            self._fail(error)
            return
        self.write(data)
        self._finish(final=final)

    def _end_stream(self) -> None:
        """The handler is through with its stream."""
        stream = self._stream
        assert self._turn is not None
        if stream is None:
            self._fail(RuntimeError("the handler answered nothing"))
        elif not stream.closed:
            self._fail(RuntimeError("the handler left its stream open"))
        else:
            final = self._turn.final or self._stream_is_final
            self._finish(final=final or stream.aborted, completed=not stream.aborted)

    def _finish(self, *, final: bool, completed: bool = True) -> None:
        turn = self._turn
        assert turn is not None
        self._turn = self._stream = None
        self._num_served += 1
        now = self._close_books(turn.request, completed)
        if final:
            self._shut_down(turn.linger)
        elif self._parser.phase is Phase.BETWEEN:
            config = self._config
            grace = config.drain_grace if self._server.draining else config.keep_alive_timeout
            self._aim(read=now + grace)

    def _close_books(self, request: Request, completed: bool) -> float:
        """Frees what the request held and reports it; returns the time."""
        server = self._server
        now = self._loop.time()
        if request.body:
            server.body_budget.give_back(len(request.body))
        if server.observers:
            num_bytes = self._num_written - self._num_written_before
            status = self._status if num_bytes else _CLIENT_CLOSED_REQUEST
            duration = now - request.received_at
            server.report(Exchange(request, status, num_bytes, duration, completed))
        return now

    def _abandon(self) -> None:
        """The client has gone: nobody waits for the current turn or the ones behind it."""
        turn, task, stream = self._turn, self._task, self._stream
        self._turn = self._task = self._stream = None
        if turn is not None:
            completed = stream is not None and stream.closed and not stream.aborted
            self._close_books(turn.request, completed)
        if stream is not None:
            stream.release()
        self._drop_queue()
        if task is not None:
            task.cancel()

    def _drop_queue(self) -> None:
        for turn in self._queue:
            self._server.body_budget.give_back(len(turn.request.body))
        self._queue.clear()

    def _cross_origin_fields(self, request: Request) -> HeaderPairs:
        policy = self._server.dispatcher.cross_origin
        return () if policy is None else policy.response_fields(request)

    def _send_continue(self) -> None:
        """RFC 9110 10.1.1; an interim answer must not overtake those still due."""
        if self._parser.phase is Phase.BODY and self._turn is None and not self._queue:
            self._parser.awaiting_continue = False
            self.write(CONTINUE)

    # Ends

    def _shut_down(self, linger: bool) -> None:
        if self._state is not _State.OPEN or self._transport is None:
            return
        self._parser.close()
        self._drop_queue()
        if not linger:
            self._close()
            return
        # Closing with input unread would reset the connection under the answer.
        self._state = _State.LINGERING
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._aim(read=self._loop.time() + self._config.linger_timeout)

    def _close(self) -> None:
        """A transport never finishes closing towards a client that does not read, hence the
        deadline."""
        assert self._transport is not None
        self._state = _State.CLOSING
        self._transport.close()
        self._aim(read=self._loop.time() + self._config.close_timeout)

    # Time

    def _time_phase(self, phase: Phase) -> None:
        """Sets the deadline of what the parser has begun to wait for."""
        self._timed_phase = phase
        if phase is Phase.HEAD:
            self._aim(read=self._loop.time() + self._config.head_timeout)
        elif phase is Phase.BODY:
            self._body_started = self._loop.time()
            self._aim(read=self._body_started + self._config.body_timeout)

    def _aim(self, *, read: float | None = None, write: float | None = None) -> None:
        """Sets deadlines, in loop time, and the timer if they come before it."""
        if read is not None:
            self._read_deadline = read
        if write is not None:
            self._write_deadline = write
        due = min(self._read_deadline, self._write_deadline)
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        now = self._loop.time()
        if now >= self._write_deadline:
            self._write_deadline = _NEVER
            self._expire_write(now)
        if now >= self._read_deadline:
            self._read_deadline = _NEVER
            self._expire_read(now)
        if self._state is not _State.CLOSED:
            self._aim()

    def _expire_write(self, now: float) -> None:
        num_flushed = self._num_written - self.buffered
        if num_flushed > self._num_flushed:
            self._num_flushed = num_flushed
            self._write_deadline = now + self._config.write_timeout
        else:
            logger.warning("%s has stopped reading: its connection is cut", self._client)
            self.cut(reset=True)

    def _expire_read(self, now: float) -> None:
        if self._state is _State.CLOSING:
            self.cut(reset=True)
        elif self._state is _State.LINGERING:
            self._close()
        elif self._parser.phase is Phase.HEAD:
            self._time_out("the head did not arrive in time")
        elif self._parser.phase is Phase.BODY:
            size = self._parser.body_size
            config = self._config
            due = self._body_started + config.body_timeout + size / config.min_body_rate
            if due > now:
                self._read_deadline = due
            else:
                self._time_out("the body did not arrive in time")
        elif self._turn is None:
            self._shut_down(linger=False)

    def _time_out(self, message: str) -> None:
        self._parser.close()
        self.on_fault(Fault(408, message))
