"""One WebSocket connection (RFC 6455) on the transport of an HTTP connection.

`wsproto` reads and writes frames. Messages are text. No extension is negotiated: compression costs
more time than it saves on short events.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections import deque
from collections.abc import Callable
from io import StringIO
from typing import Final, NamedTuple

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from fastovms.config import HttpConfig
from fastovms.http.messages import Exchange, Request
from fastovms.http.parser import BodyBudget
from fastovms.http.wire import Wire

logger = logging.getLogger(__name__)

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = "13"
_KEY_BYTES: Final = 16
_MAX_WAITING: Final = 16
"""Complete messages that may wait before reading pauses."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
UNSUPPORTED: Final = 1003
TOO_LARGE: Final = 1009
INTERNAL_ERROR: Final = 1011
RESTART: Final = 1012
OVERLOADED: Final = 1013
"""Close codes (RFC 6455 7.4.1, and the registry of IANA)."""


class HandshakeFault(NamedTuple):
    """The status and the message of the answer to a request that opens no WebSocket connection."""

    status: int
    message: str


def handshake_fault(request: Request) -> HandshakeFault | None:
    """Returns why a request does not open a WebSocket connection (RFC 6455 4.2.1); None = it
    does."""
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


class WebSocket:
    """The server's side of an open connection.

    Silence is ended by pings. A client that sends nothing for some of their intervals is
    disconnected. Reading pauses while messages wait.

    Args:
        sender: whose share of the memory of request bodies its messages take.

    Attributes:
        config: the limits.
        report: tells the observers of a request that came over the connection.
        num_sent: bytes of messages that were sent.
        draining: whether the server shuts down.
    """

    def __init__(
        self,
        wire: Wire,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        budget: BodyBudget,
        sender: str,
        report: Callable[[Exchange], None],
    ) -> None:
        self._wire = wire
        self._loop = loop
        self.config = config
        self.report = report
        self._budget = budget
        self._sender = sender
        self._frames = Connection(ConnectionType.SERVER)
        self._begun = StringIO()  # the message of which more fragments come
        self._held = 0  # bytes of the budget, of all messages
        self._messages: deque[str] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_over = False
        self._heard_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.num_sent = 0
        self.draining = False
        self.on_writable: Callable[[], None] | None = None
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

    async def receive(self) -> str | None:
        """Returns the next message; None = the connection ends, or the server drains."""
        while not self._messages:
            if self._is_over or self.draining or self._frames.state is not ConnectionState.OPEN:
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        self._give_back(len(message))
        self._wire.resume_reading()
        return message

    def send(self, text: str) -> None:
        """Sends a message. One to a closed connection is dropped."""
        if self.is_open:
            self.num_sent += len(text)
            self._wire.write(self._frames.send(TextMessage(data=text)))

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Begins the end of the connection, or answers that of the client. Idempotent."""
        if not self._is_over and self._frames.state in (
            ConnectionState.OPEN,
            ConnectionState.REMOTE_CLOSING,
        ):
            self._wire.write(self._frames.send(CloseConnection(code=code, reason=reason)))
        self._stop()

    # The connection's side

    def feed(self, data: bytes) -> None:
        """Takes bytes of the client."""
        if self._is_over:
            return
        self._heard_at = self._loop.time()
        self._frames.receive_data(data)
        for event in self._frames.events():
            match event:
                case TextMessage():
                    self._take(event.data, event.message_finished)
                case BytesMessage():
                    self.close(UNSUPPORTED, "messages must be text")
                case Ping() if self._frames.state is ConnectionState.OPEN:
                    self._wire.write(self._frames.send(event.response()))
                case CloseConnection(code=code):
                    # 1006 is never sent, and a fault of the client's is answered with its code.
                    self.close(int(code) if code else NORMAL)
                case Pong() | _:
                    pass
            if not self.is_open:
                return
        if len(self._messages) >= _MAX_WAITING:
            self._wire.pause_reading()

    def on_resume(self) -> None:
        """Is called when the client reads again."""
        if self.on_writable is not None:
            self.on_writable()

    def drain(self) -> None:
        """Has `receive` return None."""
        self.draining = True
        self._wake()

    def lose(self) -> None:
        """Is called when the transport is lost."""
        self._stop()

    def _take(self, piece: str, is_complete: bool) -> None:
        # A character has at least one byte, and bytes are what a client must pay for.
        if self._begun.tell() + len(piece) > self.config.largest_body:
            self.close(TOO_LARGE, f"a message may have {self.config.largest_body} bytes")
            return
        if not self._budget.take(self._sender, len(piece)):
            self.close(OVERLOADED, "too many messages of this client in memory")
            return
        self._held += len(piece)
        self._begun.write(piece)
        if is_complete:
            self._messages.append(self._begun.getvalue())
            self._begun = StringIO()
            self._wake()

    def _give_back(self, size: int) -> None:
        if size:
            self._held -= size
            self._budget.give_back(self._sender, size)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop(self) -> None:
        """Ends the receiving side and gives everything back."""
        self._is_over = True
        self.on_writable = None
        self._messages.clear()
        self._begun = StringIO()
        self._give_back(self._held)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
