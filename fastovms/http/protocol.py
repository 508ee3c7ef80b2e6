"""One HTTP connection: reads requests, runs them in order, enforces deadlines."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fastovms.config import HttpConfig
from fastovms.errors import shortage_of
from fastovms.http.messages import (
    Exchange,
    Handler,
    HeaderPairs,
    Request,
    Response,
    Stream,
    StreamHead,
    UploadHandler,
)
from fastovms.http.parser import (
    Fault,
    InputRefused,
    ParserPhase,
    RequestParser,
    large_body_fault,
    trace_context,
)
from fastovms.http.routing import Dispatcher
from fastovms.http.wire import Deadline, Wire, WireState
from fastovms.http.writers import (
    CONTINUE,
    Handover,
    ResponseStream,
    ServerState,
    Successor,
)

logger = logging.getLogger(__name__)


class ReadDeadline(Deadline):
    """The deadline for the client's input.

    The deadline of a head is absolute. A body first has `body_timeout` seconds. At each expiry this
    is extended by the time that the bytes since the last check take at the minimum rate, at most
    `body_timeout`; so sending fast early does not earn more time later.

    Args:
        on_deadline: called with the reason if a request has begun and is not complete in time.
        on_idle: called if no request has begun.

    Attributes:
        phase: the parser's phase at the last call of `follow`.
    """

    __slots__ = ("_body_size", "_config", "_on_deadline", "_on_idle", "_parser", "phase")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        parser: RequestParser,
        on_deadline: Callable[[str], None],
        on_idle: Callable[[], None],
    ) -> None:
        super().__init__(loop, self._expire)
        self._config = config
        self._parser = parser
        self._on_deadline = on_deadline
        self._on_idle = on_idle
        self._body_size = 0  # size of the body at the last check
        self.phase = parser.phase

    def close(self) -> None:
        super().close()
        del self._on_deadline, self._on_idle  # breaks reference cycles

    def follow(self) -> None:
        """Sets the deadline for a new phase of the parser."""
        self.phase = phase = self._parser.phase
        if phase is ParserPhase.HEAD:
            self.set(self._loop.time() + self._config.head_timeout)
        elif phase is ParserPhase.BODY:
            self._body_size = 0
            self.set(self._loop.time() + self._config.body_timeout)

    def _expire(self) -> None:
        phase = self._parser.phase
        if phase is ParserPhase.HEAD:
            self._on_deadline("the head did not arrive in time")
        elif phase is ParserPhase.BODY:
            config, sink = self._config, self._parser.body_sink
            min_rate = config.min_body_rate if sink is None else sink.min_rate
            size = self._parser.body_size
            allowance = min((size - self._body_size) / min_rate, config.body_timeout)
            if sink is not None and sink.is_full:  # the disk limits the rate, not the client
                allowance = config.body_timeout
            self._body_size = size
            if allowance:
                self.set(self._loop.time() + allowance)
            else:
                self._on_deadline("the body did not arrive in time")
        else:
            self._on_idle()


_MAX_AT_TURNSTILE = 512


class PendingRequest(NamedTuple):
    """A request and its handler.

    Attributes:
        final: whether the connection ends with the answer.
        linger: whether the client may still be sending at that time.
    """

    request: Request
    answer: Handler | Response
    final: bool
    linger: bool = False


class PendingRequests(deque[PendingRequest]):
    """The queued requests of a connection. Their bodies count against the memory limit of all
    bodies."""

    __slots__ = ()

    def is_full(self, server: ServerState, *, is_blocked: bool) -> bool:
        """Returns whether the queue is full. `is_blocked`: the queue waits for an answer in
        progress, or for the client to read. If not, all requests of one read may be queued."""
        most = server.config.max_pipelined
        return len(self) >= (most if is_blocked else max(_MAX_AT_TURNSTILE, most))

    def drop(self, server: ServerState) -> None:
        """Drops all pending requests and frees the memory of their bodies."""
        for pending in self:
            server.give_back_body(pending.request)
        self.clear()


def admit_body(
    dispatcher: Dispatcher,
    request: Request,
    content_length: int | None,
    largest_body: int,
    on_change: Callable[[], None],
) -> Handler | Response:
    """Returns the handler of a request with a body, or a refusal, like `Dispatcher.admit`. For an
    upload, sets the request's `sink`. Raises Fault if the body is too large for memory.

    Args:
        content_length: the size of the body that follows; None = not known yet.
        largest_body: the limit for bodies in memory, in bytes.
        on_change: the `on_change` of that sink.
    """
    admitted = dispatcher.admit(request)
    if not isinstance(admitted, UploadHandler):
        if content_length is not None and content_length > largest_body:
            raise large_body_fault(largest_body)
        return admitted
    sink = admitted.open_sink(request)
    if isinstance(sink, Response):
        return sink
    request.sink = sink
    sink.on_change = on_change
    return admitted


# A refused body is read to its end to keep the connection; beyond this size, closing is cheaper.
_MAX_DISCARDED_BODY = 64 * 1024
_CLIENT_CLOSED_REQUEST = 499
# After a read of this size, a connection may have to wait for a later pass of the loop.
_LARGE_READ = 64 * 1024

# Look-ups in an Enum class are slow.
_OPEN = WireState.OPEN
_BETWEEN = ParserPhase.BETWEEN
_DONE = ParserPhase.DONE


class Connection(asyncio.Protocol):
    """A connection that serves requests one after the other, in order of arrival."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._loop = server.loop
        self._config = server.config
        self._wire = Wire(server.config, server.loop, server.outbox)
        self._parser = RequestParser(server.config, server.body_budget, self)
        self._deadline = ReadDeadline(
            server.loop, server.config, self._parser, self._on_deadline, self._on_idle
        )
        self._num_served = 0
        self._num_discarded = 0
        self._admitted: Handler | Response | None = None
        self._queue = PendingRequests()
        # The request that is being answered
        self._request: Request | None = None
        self._final = False
        self._linger = False
        self._task: asyncio.Future[Response | None] | None = None
        self._stream: ResponseStream | None = None
        self._successor: Successor | None = None
        self._status = 0
        self._written_before = 0

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire.attach(transport)
        self._deadline.set(self._loop.time() + self._config.head_timeout)
        if not self._server.add(self):
            self._parser.close()
            self.on_fault(Fault(503, "too many connections", headers=(("Retry-After", "1"),)))

    def data_received(self, data: bytes) -> None:
        if self._wire.state is not _OPEN:
            return
        if self._successor is not None:
            self._successor.feed(data)
            return
        parser = self._parser
        if parser.phase is _DONE:
            self._discard(len(data))
            return
        parser.feed(data)
        if parser.awaiting_continue:
            self._send_continue()
        if parser.phase is not self._deadline.phase:
            self._deadline.follow()
        if parser.body_sink is not None and parser.body_sink.is_full:
            self._wire.pause_reading()
        elif len(data) >= _LARGE_READ and not self._server.read_limiter.is_open:
            self._wire.pause_reading()
            self._server.read_limiter.wait(self._read_on)

    def eof_received(self) -> None:
        """Handles the end of the client's input, which counts as a disconnect if a request is in
        flight. Returns None, so that the transport flushes and closes."""
        self._parser.close()
        self._abandon()
        self._wire.on_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser.close()
        self._abandon()
        self._deadline.close()
        self._wire.detach()
        self._server.remove(self)

    def pause_writing(self) -> None:
        self._wire.pause()

    def resume_writing(self) -> None:
        self._wire.resume()
        if self._successor is not None:
            self._successor.on_resume()
        stream = self._stream
        if stream is not None and stream.on_writable is not None:
            stream.on_writable()
        self._begin_next()

    def _read_on(self) -> None:
        self._server.read_limiter.count_read()
        self._wire.resume_reading()

    def _on_sink_change(self) -> None:
        """Resumes reading the body of an upload, or refuses it after a fault."""
        sink, request = self._parser.body_sink, self._parser.unfinished()
        if sink is None:
            return  # the body is complete, and the handler is responsible for it
        self._wire.resume_reading()
        if sink.fault is not None and request is not None:
            self._parser.close()
            self._take(PendingRequest(request, sink.fault, final=True, linger=True))

    # The server's side

    def drain(self) -> None:
        """Closes after the next answer, which announces that, or soon if the connection stays idle.
        A connection without a request so far keeps the time limit of its first request."""
        if self._successor is not None:
            self._successor.drain()
        if self._num_served and self._request is None and self._parser.phase is _BETWEEN:
            self._deadline.set(self._loop.time() + self._config.drain_grace)

    def cut(self) -> None:
        """Resets the connection; data that is not sent yet is lost."""
        self._wire.cut(reset=True)

    def requests(self) -> Iterator[Request]:
        """Yields the request in progress, the queued ones, and the one that is being read."""
        reading = None if self._parser.phase is _DONE else self._parser.unfinished()
        yield from filter(None, (self._request, *(one.request for one in self._queue), reading))

    # Callbacks of the parser

    def on_head(self, request: Request, content_length: int | None) -> bool:
        server = self._server
        request.client = server.client_of(self._wire.client, request.headers)
        request.id = server.request_id(request.headers.by_name.get("x-request-id"))
        request.trace = trace_context(request.headers)
        request.received_at = self._loop.time()
        request.open_stream = self._open_stream
        request.upgrade = self._upgrade
        admitted = self._admitted = admit_body(
            server.dispatcher,
            request,
            content_length,
            self._config.largest_body,
            self._on_sink_change,
        )
        if content_length == 0 or not isinstance(admitted, Response):
            return True
        if (
            content_length is None
            or content_length > _MAX_DISCARDED_BODY
            or self._parser.awaiting_continue  # without a 100 (Continue), the client sends no body
        ):
            self._take(PendingRequest(request, admitted, final=True, linger=True))
            raise InputRefused
        return False

    def on_request(self, request: Request, keep_alive: bool) -> None:
        self._deadline.phase = _BETWEEN
        admitted = self._admitted
        assert admitted is not None
        is_next = self._request is None and not self._queue and not self._wire.paused
        if is_next and self._server.start_limiter.is_open:
            self._final = not keep_alive
            self._begin(request, admitted)
            return
        is_blocked = self._request is not None or self._wire.paused
        if self._queue.is_full(self._server, is_blocked=is_blocked):
            self._server.give_back_body(request)
            request.body = b""
            raise Fault(503, "too many pipelined requests", request=request)
        self._queue.append(PendingRequest(request, admitted, final=not keep_alive))
        if is_next:
            self._wait_to_begin()

    def on_fault(self, fault: Fault) -> None:
        if not fault.answered:
            logger.warning("connection of %s: %s", self._wire.client, fault.message)
            self._wire.finish(linger=False)
            return
        request = fault.request or Request("-", "")
        if not request.received_at:  # the head is malformed, so the request is new
            request.client = self._wire.client
            request.id = self._server.request_id(request.headers.by_name.get("x-request-id"))
            request.received_at = self._loop.time()
        error = self._server.dispatcher.error
        answer = error(request, fault.status, fault.message, fault.headers)
        self._take(PendingRequest(request, answer, final=True, linger=True))

    def _discard(self, num_bytes: int) -> None:
        """Discards further input while earlier answers are pending. If the client sends more than
        `num_bytes`, the connection is reset, and the answers are lost."""
        self._num_discarded += num_bytes
        if self._num_discarded > self._config.max_body:
            logger.warning(
                "connection of %s: closed, because the client kept sending after its last request",
                self._wire.client,
            )
            self._wire.cut(reset=True)

    # Requests in order of arrival

    def _take(self, pending: PendingRequest) -> None:
        self._queue.append(pending)
        self._begin_next()

    def _wait_to_begin(self) -> None:
        # The client has no running request, so a disconnect may be noticed one pass later.
        self._wire.pause_reading()
        self._server.start_limiter.wait(self._on_may_begin)

    def _on_may_begin(self) -> None:
        self._wire.resume_reading()
        self._begin_next()

    def _begin_next(self) -> None:
        while self._queue and self._request is None and self._wire.writable:
            request, answer, self._final, self._linger = self._queue.popleft()
            self._begin(request, answer)
            if self._queue and self._request is None and not self._server.start_limiter.is_open:
                self._wait_to_begin()
                return
        if self._parser.awaiting_continue:
            self._send_continue()

    def _begin(self, request: Request, answer: Handler | Response) -> None:
        self._request = request
        self._written_before = self._wire.num_written
        if isinstance(answer, Response):
            self._respond(answer)
            return
        try:
            outcome = answer(request)
        except Exception as error:
            self._fail(error)
            return
        if isinstance(outcome, Response):
            self._respond(outcome)
        elif outcome is None:
            self._end_stream()
        else:
            if self._deadline.phase is _BETWEEN:
                self._deadline.clear()
            self._task = task = asyncio.ensure_future(outcome, loop=self._loop)
            self._server.tasks.add(task)
            self._server.start_limiter.count_task()
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Future[Response | None]) -> None:
        self._server.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self._task is not task:
            if error is not None:
                logger.error("a request failed after its client had disconnected", exc_info=error)
            return
        self._task = None
        if task.cancelled():
            self._wire.cut(reset=True)
        elif error is not None:
            self._fail(error)
        else:
            response = task.result()
            if response is None:
                self._end_stream()
            else:
                self._respond(response)
        self._begin_next()

    def _respond(self, response: Response) -> None:
        request, stream, server = self._request, self._stream, self._server
        assert request is not None
        request.log_fields.update(response.log_fields)
        if stream is not None:
            if stream.started:
                self._fail(RuntimeError("the handler returned a Response after streaming"))
                return
            stream.release()
        self._final = final = self._final or server.draining
        self._status = response.status
        extra = server.dispatcher.answer_fields(request)
        try:
            data = server.writer.render(response, request, close=final, extra=extra)
        except ValueError as error:
            self._fail(error)
            return
        self._wire.post(data)
        self._finish(completed=True)

    def _end_stream(self) -> None:
        """Ends the stream of a handler that has returned."""
        stream = self._stream
        if self._successor is not None:
            self._successor.close()
            # TLS cannot close one side only, and the client waits for the connection's end.
            self._linger = self._wire.can_half_close or not self._successor.client_has_closed
            self._finish(completed=True)
        elif stream is None:
            self._fail(RuntimeError("the handler answered nothing"))
        elif not stream.closed:
            self._fail(RuntimeError("the handler left its stream open"))
        else:
            self._final = stream.is_last or stream.aborted
            self._finish(completed=not stream.aborted)

    def _fail(self, error: BaseException) -> None:
        """Answers with an error, or cuts the connection, if the handler raised or returned
        wrongly."""
        request, stream = self._request, self._stream
        assert request is not None
        logger.error("request %s %s failed", request.method, request.raw_path, exc_info=error)
        if self._successor is not None:
            self._successor.fail()
            self._finish(completed=False)
        elif stream is not None and stream.started:
            stream.abort()
            self._final = True
            self._finish(completed=False)
        else:
            shortage = shortage_of(error)
            given = (500, "internal error") if shortage is None else (503, str(shortage))
            self._respond(self._server.dispatcher.error(request, *given))

    def _finish(self, *, completed: bool) -> None:
        """Ends the current request and starts the next one."""
        self._finish_request(completed)
        self._request = self._stream = None
        self._num_served += 1
        if self._final:
            # If the client has sent data after the last request, a plain close would become a
            # reset, which may overtake the answer (RFC 9112 9.6).
            linger = self._linger or bool(self._queue)
            self._parser.close()
            self._queue.drop(self._server)
            self._wire.finish(linger=linger)
        elif self._parser.phase is _BETWEEN:
            config = self._config
            grace = config.drain_grace if self._server.draining else config.keep_alive_timeout
            self._deadline.set(self._loop.time() + grace)

    def _finish_request(self, completed: bool) -> None:
        """Releases the resources of the current request and reports it to the observers."""
        request, server = self._request, self._server
        assert request is not None
        server.give_back_body(request)
        if server.observers:
            num_bytes = self._wire.num_written - self._written_before
            status = self._status if num_bytes else _CLIENT_CLOSED_REQUEST
            duration = self._loop.time() - request.received_at
            server.report(Exchange(request, status, num_bytes, duration, completed))

    def _abandon(self) -> None:
        """Ends a connection whose client has disconnected, and cancels its requests."""
        task, stream = self._task, self._stream
        if self._request is not None:
            finished = stream is not None and stream.closed and not stream.aborted
            self._finish_request(completed=finished)
        self._request = self._task = self._stream = None
        self._queue.drop(self._server)
        if self._successor is not None:
            self._successor.lose()
        if stream is not None:
            stream.release()
        if task is not None:
            task.cancel()

    def _open_stream(self, request: Request, head: StreamHead, ping: bool) -> Stream:
        if self._request is not request or self._stream is not None:
            raise RuntimeError(
                "cannot stream: the request was already answered, or its client has disconnected"
            )
        self._status = head.status
        self._stream = stream = ResponseStream(
            self._wire,
            self._server,
            request,
            head,
            is_last=self._final,
            ping=ping,
            has_returned=lambda: self._task is not None and self._task.done(),
        )
        return stream

    def _upgrade(
        self, request: Request, fields: HeaderPairs, make: Callable[[Handover], Successor]
    ) -> Successor:
        if self._request is not request or self._stream is not None:
            raise RuntimeError(
                "cannot upgrade: the request was already answered, or its client has disconnected"
            )
        server = self._server
        self._status, self._final, self._linger = 101, True, True
        self._parser.close()
        self._queue.drop(server)
        self._deadline.clear()
        self._wire.write(server.writer.render_upgrade(request, fields))
        self._successor = successor = make(
            Handover(
                self._wire,
                self._loop,
                self._config,
                server.body_budget,
                server.frame_limiter,
                request.sender,
                server.report,
            )
        )
        if server.draining:
            successor.drain()
        return successor

    # Waiting for the client

    def _send_continue(self) -> None:
        """Sends `100 Continue` (RFC 9110 10.1.1). Waits until earlier answers are sent."""
        if self._parser.phase is ParserPhase.BODY and self._request is None and not self._queue:
            self._parser.awaiting_continue = False
            self._wire.write(CONTINUE)

    def _on_idle(self) -> None:
        if self._queue or self._wire.buffered:
            # The client is still reading, for which the wire has a deadline of its own.
            self._deadline.set(self._loop.time() + self._config.keep_alive_timeout)
        elif self._request is None and self._wire.has_unread:
            # A request has come while the loop was busy; the next pass of the loop reads it.
            self._deadline.set(self._loop.time())
        elif self._request is None:
            self._parser.close()
            self._wire.finish_idle()

    def _on_deadline(self, message: str) -> None:
        request = self._parser.unfinished()
        self._parser.close()
        self.on_fault(Fault(408, message, request=request))
