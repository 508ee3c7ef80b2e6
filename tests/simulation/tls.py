"""TLS over the connections of a world: the server's end by asyncio, the client's by hand.

OpenSSL draws its keys by chance of its own, so the bytes of a connection differ from run to run,
and the lengths of some records of the handshake do. Worlds repeat themselves all the same, because
nothing is decided by these bytes: the network passes records on, in pieces whose number is chosen
by the world's chance, and counts records of the handshake as empty. How many records there are, and
how long the others are, depends on the plain text only.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from asyncio.sslproto import SSLProtocol
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from tests.simulation.loop import SimLoop
from tests.simulation.network import MAX_READ, Flow, Line, Link, ServerTransport
from tests.simulation.world import World

CERTIFICATES: Final = tuple(
    Path(__file__).parent.parent / "http" / "tls" / f"{name}.crt" for name in ("first", "second")
)
"""Certificates that a server may have; their keys have the same name."""

_HEAD: Final = struct.Struct("!BHH")
_NUM_OF_HANDSHAKE: Final = 10
"""Records at the beginning of each direction that count as empty: in both versions of TLS, those of
the handshake and the tickets after it are fewer."""


class TlsFlow(Flow):
    """Passes TLS records on, each in one piece or several."""

    def __init__(self, world: World, line: Line) -> None:
        super().__init__(world, line)
        self._begun = b""  # a record that is not complete, or no record at all
        self._num_records = 0
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._arrived: deque[tuple[bytes, int]] = deque()

    @property
    def num_unsent(self) -> int:
        return sum(size for _, size in self._waiting)

    @property
    def num_unread(self) -> int:
        return sum(size for _, size in self._arrived)

    @property
    def has_unsent(self) -> bool:
        return bool(self._waiting)

    @property
    def has_unread(self) -> bool:
        return bool(self._arrived)

    def drop(self) -> None:
        self._waiting.clear()

    def send(self, data: bytes) -> None:
        self._begun += data
        while len(self._begun) >= _HEAD.size:
            end = _HEAD.size + _HEAD.unpack_from(self._begun)[2]
            if len(self._begun) < end:
                break
            self._add(self._begun[:end])
            self._begun = self._begun[end:]
        self.pump()

    def send_raw(self, data: bytes) -> None:
        """Sends bytes that are no records."""
        self._waiting.append((data, len(data)))
        self.pump()

    def take(self, most: int = MAX_READ) -> bytes:
        """Returns what has come; the first piece, where fewer bytes are wanted."""
        pieces = []
        while self._arrived:
            pieces.append(self._arrived.popleft()[0])
            if most < MAX_READ:
                break
        self.pump()
        return b"".join(pieces)

    def _add(self, record: bytes) -> None:
        self._num_records += 1
        size = len(record) if self._num_records > _NUM_OF_HANDSHAKE else 0
        chance = self._world.chance
        num = 1 if self._line.piece >= 60_000 else chance.choice((1, 1, 2, 3))
        cuts = sorted(int(len(record) * chance.random()) for _ in range(num - 1))
        for start, end in zip([0, *cuts], [*cuts, len(record)], strict=True):
            self._waiting.append((record[start:end], size // num))

    def _next_piece(self, room: int) -> tuple[bytes, int]:
        return self._waiting.popleft()

    def _keep(self, piece: bytes, size: int) -> None:
        self._arrived.append((piece, size))


class TlsClient:
    """The client's side of TLS, between its connection and a link.

    Attributes:
        has_ended: whether the server has said that it sends no more.
        certificate: the server's, once the handshake is over.
        begun_at, done_at: when the handshake began, and was over.
        error: why the connection cannot be used.
    """

    def __init__(self, link: Link, context: ssl.SSLContext) -> None:
        self._link = link
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing)
        self._unsent = b""
        self.has_ended = False
        self.certificate: bytes | None = None
        self.begun_at = self.done_at = link.world.now
        self.error = ""
        self.advance()

    def send(self, data: bytes) -> None:
        self._unsent += data
        self.advance()

    def end(self) -> None:
        """Says that no more is sent."""
        if self.certificate is not None:
            with suppress(ssl.SSLError):
                self._object.unwrap()
            self._flush()

    def advance(self) -> None:
        """Takes the handshake on, with what has come, and sends what waits for its end."""
        if self.certificate is None:
            if self._link.down.has_unread:
                self._incoming.write(self._link.down.take())
            try:
                self._object.do_handshake()
                self.certificate = self._object.getpeercert(binary_form=True)
                self.done_at = self._link.world.now
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self.error = str(error.reason)
        if self.certificate is not None and self._unsent:
            self._object.write(self._unsent)
            self._unsent = b""
        self._flush()

    @property
    def is_shaking_hands(self) -> bool:
        return self.certificate is None and not self.error

    def receive(self, data: bytes = b"") -> bytes:
        """Returns the plain text of what has come."""
        if self.certificate is None:
            return b""
        self._incoming.write(data)
        plain = b""
        try:
            while more := self._object.read(MAX_READ):
                plain += more
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            self.error = str(error.reason)
        self._flush()
        return plain

    def _flush(self) -> None:
        if (data := self._outgoing.read()) and not self._link.is_reset:
            self._link.up.send(data)


def certificate_number(data: bytes) -> str:
    """Returns the number of the certificate in `CERTIFICATES` that a client has got."""
    texts = [path.read_text() for path in CERTIFICATES]
    return str([ssl.PEM_cert_to_DER_cert(text) for text in texts].index(data))


@cache
def client_context(version: ssl.TLSVersion) -> ssl.SSLContext:
    """Returns the context of clients that speak one version. They trust all `CERTIFICATES`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    for path in CERTIFICATES:
        context.load_verify_locations(path)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["http/1.1"])
    return context


class ListeningSocket:
    """Stands for a listening socket that `Acceptor` accepts connections from.

    Args:
        take: returns the next connection; None = there is none. Raises OSError.
    """

    def __init__(self, take: Callable[[], Link | None]) -> None:
        self._take = take

    def listen(self, backlog: int) -> None:
        pass

    def accept(self) -> tuple[AcceptedSocket, None]:
        link = self._take()
        if link is None:
            raise BlockingIOError
        return AcceptedSocket(link), None

    def close(self) -> None:
        pass


class AcceptedSocket:
    """Stands for the socket of an accepted connection that no transport has yet."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def setblocking(self, flag: bool) -> None:
        pass

    def close(self) -> None:
        if self.link.transport is None:
            self.link.server_resets()

    async def connect(
        self,
        loop: SimLoop,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext | None,
        **timeouts: float,
    ) -> None:
        """Shakes hands, if there is TLS. Raises OSError where that fails."""
        link, waiter = self.link, loop.create_future()
        if context is None:
            link.transport = ServerTransport(link, loop, protocol)
            if link.is_client_reset:
                link.transport.on_reset()
            else:
                link.up.on_data()
            return
        tls = SSLProtocol(loop, protocol, context, waiter, server_side=True, **timeouts)
        link.transport = transport = ServerTransport(link, loop, tls)
        if link.is_client_reset:
            transport.on_reset()
        else:
            link.up.on_data()
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
