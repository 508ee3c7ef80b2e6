"""A WebSocket connection (RFC 6455) on the transport of an HTTP connection.

`wsproto` reads and writes frames. Messages are text. No extension is negotiated: compression costs
more time than it saves on short events.

The limits are those of HTTP: messages count like request bodies for size, time and memory, and
connections take turns frame by frame, as requests do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections import deque
from collections.abc import Callable
from mmap import mmap
from typing import Final, NamedTuple

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from fastovms.http.messages import Request
from fastovms.http.parser import BodyBuffer, large_body_fault
from fastovms.http.wire import Deadline
from fastovms.http.writers import Handover, Successor

logger = logging.getLogger(__name__)

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = "13"
_KEY_BYTES: Final = 16
_MAX_WAITING: Final = 16
"""The number of queued complete messages at which reading pauses."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
UNSUPPORTED: Final = 1003
POLICY: Final = 1008
TOO_LARGE: Final = 1009
INTERNAL_ERROR: Final = 1011
RESTART: Final = 1012
OVERLOADED: Final = 1013
"""Close codes (RFC 6455 7.4.1, and the registry of IANA)."""


class HandshakeFault(NamedTuple):
    """The status and the message of the answer to an invalid WebSocket request."""

    status: int
    message: str


def handshake_fault(request: Request) -> HandshakeFault | None:
    """Returns why a request is not a valid WebSocket handshake (RFC 6455 4.2.1); None = valid."""
    fields = request.headers.by_name
    if not request.wants_websocket or request.http_version != "1.1":
        message = "this path takes WebSocket connections: an Upgrade to websocket is required"
        return HandshakeFault(426, message)
    if fields.get("sec-websocket-version") != _VERSION:
        return HandshakeFault(426, f"Sec-WebSocket-Version must be {_VERSION}")
    try:
        key = base64.b64decode(fields.get("sec-websocket-key", ""), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        return HandshakeFault(400, f"Sec-WebSocket-Key must be {_KEY_BYTES} bytes in base64")
    return None


def accept_key(request: Request) -> str:
    """Returns the value of Sec-WebSocket-Accept (RFC 6455 4.2.2)."""
    key = request.headers.by_name["sec-websocket-key"].strip().encode()
    return base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode()


def open_websocket(request: Request) -> WebSocket:
    """Answers a request without a `handshake_fault` with the upgrade (RFC 6455 4.2.2), and returns
    the connection."""
    assert request.upgrade is not None
    fields = (("Upgrade", "websocket"), ("Sec-WebSocket-Accept", accept_key(request)))
    opened: WebSocket = request.upgrade(request, fields, WebSocket)
    return opened


class WebSocket(Successor):
    """The server's side of an open connection.

    Pings are sent during silence. A client that does not respond for several intervals is
    disconnected. Reading pauses while messages are queued, and between the connection's turns.

    Attributes:
        config: the limits.
        report: notifies the observers of a request that came over the connection.
        num_sent: the total bytes of sent messages.
        draining: whether the server is shutting down.
        on_fault: called with an HTTP status and a message before the connection is closed because
            of a message that would be refused as an HTTP body.
    """

    def __init__(self, link: Handover) -> None:
        self._wire = link.wire
        self._loop = loop = link.loop
        self.config = config = link.config
        self.report = link.report
        self._budget = link.budget
        self._limiter = link.limiter
        self._sender = link.sender
        self._frames = Connection(ConnectionType.SERVER)
        self._begun = BodyBuffer()  # the incomplete message
        self._has_begun = False
        self._num_begun = 0  # its number of bytes
        self._num_checked = 0  # its number of bytes at the last deadline
        self._deadline = Deadline(loop, self._on_deadline)
        self._messages: deque[bytes | mmap] = deque()
        self._waits_for_turn = False
        self._unanswered: Ping | None = None  # the last ping, while the client does not read
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False
        self._heard_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.num_sent = 0
        self.draining = False
        self.on_writable: Callable[[], None] | None = None
        self.on_fault: Callable[[int, str], None] | None = None
        if config.ping_interval:
            self._timer = loop.call_later(config.ping_interval, self._on_interval)

    @property
    def is_open(self) -> bool:
        """Whether messages may still be sent."""
        return not self._is_over and self._frames.state is ConnectionState.OPEN

    @property
    def client_has_closed(self) -> bool:
        """Whether the client's Close frame has arrived, after which it sends nothing."""
        return self._frames.state in (ConnectionState.REMOTE_CLOSING, ConnectionState.CLOSED)

    @property
    def writable(self) -> bool:
        """Whether the client reads as fast as messages are sent."""
        return self.is_open and self._wire.writable

    @property
    def buffered(self) -> int:
        """Bytes that the kernel has not accepted yet."""
        return self._wire.buffered

    async def receive(self) -> bytes | mmap | None:
        """Returns the next message in UTF-8, whose memory is counted until `give_back`; None = the
        connection ends, or the server is shutting down."""
        while not self._messages:
            if self._is_over or self.draining or self._frames.state is not ConnectionState.OPEN:
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        if len(self._messages) == _MAX_WAITING - 1:
            self._take_turn()
        return message

    def take(self, size: int) -> bool:
        """Reserves memory from the budget of request bodies, in addition to a message's. Returns
        whether the client may have it."""
        return self._budget.take(self._sender, size)

    def give_back(self, size: int) -> None:
        """Releases the memory of a message from `receive`, or memory reserved by `take`."""
        if size:
            self._budget.give_back(self._sender, size)

    def send(self, text: str) -> None:
        """Sends a message; does nothing if the connection is closed."""
        if self.is_open:
            self.num_sent += len(text)
            self._wire.write(self._frames.send(TextMessage(data=text)))

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Starts the closing handshake, or answers the client's. Idempotent."""
        if not self._is_over and self._frames.state in (
            ConnectionState.OPEN,
            ConnectionState.REMOTE_CLOSING,
        ):
            self._wire.write(self._frames.send(CloseConnection(code=code, reason=reason)))
        self._stop()

    def fail(self) -> None:
        self.close(INTERNAL_ERROR, "internal error")

    # The connection's side

    def feed(self, data: bytes) -> None:
        """Receives bytes from the client."""
        if self._is_over:
            return
        self._heard_at = self._loop.time()
        self._frames.receive_data(data)
        if not self._waits_for_turn and len(self._messages) < _MAX_WAITING:
            self._take_turn()

    def on_resume(self) -> None:
        """Called when the client reads again."""
        if self._unanswered is not None and self.writable:
            ping, self._unanswered = self._unanswered, None
            self._wire.write(self._frames.send(ping.response()))
        if self.on_writable is not None:
            self.on_writable()

    def drain(self) -> None:
        """Makes `receive` return None."""
        self.draining = True
        self._wake()

    def lose(self) -> None:
        """Called when the transport is lost."""
        self._stop()

    # Frames

    def _take_turn(self) -> None:
        """Handles frames now, or in a later pass of the loop."""
        if self._limiter.is_open:
            self._handle_frames()
        else:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._wire.pause_reading()
        self._limiter.wait(self._handle_frames)

    def _handle_frames(self) -> None:
        """Handles a frame, and more of them while no other connection waits."""
        self._waits_for_turn = False
        while not self._is_over:
            event = next(self._frames.events(), None)
            if event is None:
                self._wire.resume_reading()
                return
            self._handle(event)
            if len(self._messages) >= _MAX_WAITING:
                self._wire.pause_reading()
                return
            if not self._limiter.is_open:
                self._wait_for_turn()
                return

    def _handle(self, event: Event) -> None:
        match event:
            case TextMessage():
                self._take(event.data.encode(), event.message_finished)
            case BytesMessage():
                self._refuse(400, "messages must be text, not binary", UNSUPPORTED)
            case Ping() if self.writable:
                self._wire.write(self._frames.send(event.response()))
            case Ping():
                self._unanswered = event  # RFC 6455 5.5.3: only the last ping needs an answer
            case CloseConnection(code=code):
                # 1006 must not be sent. A client's error is answered with its own code.
                self.close(int(code) if code else NORMAL)
            case Pong() | _:
                pass

    def _take(self, piece: bytes, is_complete: bool) -> None:
        self._num_begun += len(piece)
        if self._num_begun > self.config.largest_body:
            self._num_begun -= len(piece)
            fault = large_body_fault(self.config.largest_body)
            self._refuse(fault.status, fault.message, TOO_LARGE)
            return
        if not self._budget.take(self._sender, len(piece)):
            self._num_begun -= len(piece)
            self._refuse(503, "too many messages of this client in memory", OVERLOADED)
            return
        if piece:
            self._begun.append(piece)
        if is_complete:
            self._messages.append(self._begun.take())
            self._begun, self._has_begun, self._num_begun = BodyBuffer(), False, 0
            self._deadline.clear()
            self._limiter.count_task()
            self._wake()
        elif not self._has_begun:
            self._has_begun, self._num_checked = True, 0
            self._deadline.set(self._loop.time() + self.config.body_timeout)

    def _on_deadline(self) -> None:
        """Extends the time of a message that arrives fast enough, or ends the connection, as
        `ReadDeadline` does for bodies."""
        config = self.config
        allowance = (self._num_begun - self._num_checked) / config.min_body_rate
        self._num_checked = self._num_begun
        if self._waits_for_turn or len(self._messages) >= _MAX_WAITING:
            allowance = config.body_timeout  # the server delays the reading, not the client
        if allowance:
            self._deadline.set(self._loop.time() + min(allowance, config.body_timeout))
        else:
            self._refuse(408, "the message did not arrive in time", POLICY)

    def _refuse(self, status: int, message: str, code: int) -> None:
        if self.on_fault is not None:
            self.on_fault(status, message)
        self.close(code, message)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop(self) -> None:
        """Ends the receiving side, and releases the memory of queued messages."""
        self._is_over = True
        self.on_writable = self.on_fault = None
        self.give_back(self._num_begun + sum(map(len, self._messages)))
        self._messages.clear()
        self._begun, self._num_begun = BodyBuffer(), 0
        self._deadline.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wire.resume_reading()  # a disconnect is noticed only while reading
        self._wake()

    def _on_interval(self) -> None:
        """Sends a ping, or ends the connection of a client that has not answered the last ones."""
        config = self.config
        if self._loop.time() - self._heard_at > 2 * config.ping_interval + config.write_timeout:
            logger.warning(
                "connection of %s: closed, because the client stopped answering pings",
                self._wire.client,
            )
            self._stop()
            self._wire.cut(reset=True)
            return
        if self.writable:
            self._wire.write(self._frames.send(Ping()))
        self._timer = self._loop.call_later(config.ping_interval, self._on_interval)
