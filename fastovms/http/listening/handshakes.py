"""Accepts TLS connections and bounds those that still shake hands.

`loop.create_server` tells of a TLS connection only when its handshake is over, so that nothing
would bound the connections of clients that begin one and leave it at that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from fastovms.http.connection.protocol import Connection
from fastovms.http.connection.server_state import ServerState
from fastovms.http.listening.tls import HANDSHAKE_TIMEOUT, SHUTDOWN_TIMEOUT, TlsCredentials

logger = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE: Final = 32
"""How many connections are taken from a queue before the loop sees to something else."""

_PAUSE: Final = 1.0
"""Seconds without accepting when the process has no descriptors left."""


class _SafeConnection(Connection):
    """A connection that tells when its handshake is over, which its task learns only later."""

    def __init__(self, state: ServerState, on_safe: Callable[[], None]) -> None:
        super().__init__(state)
        self._on_safe = on_safe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._on_safe()
        super().connection_made(transport)


class TlsAcceptor:
    """Serves listening sockets until it is told to stop.

    There may be as many handshakes at a time as connections. One more ends the oldest: an honest
    client is through within milliseconds, so that the oldest one is hardly ever an honest client's.
    """

    def __init__(self, state: ServerState, credentials: TlsCredentials) -> None:
        self._state = state
        self._loop = state.loop
        self._credentials = credentials
        self._listening: set[socket.socket] = set()
        self._handshakes: dict[asyncio.Task[None], None] = {}

    @property
    def num_handshakes(self) -> int:
        """How many connections have been accepted and have not finished their handshake."""
        return len(self._handshakes)

    def listen(self, sock: socket.socket) -> None:
        """Begins to accept at a bound, non-blocking socket.

        Raises:
            OSError: it cannot listen.
        """
        sock.listen(self._state.config.backlog)
        self._listening.add(sock)
        self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Stops accepting; handshakes that run go on."""
        for sock in self._listening:
            self._loop.remove_reader(sock)
        self._listening.clear()

    async def wait_until_done(self) -> None:
        """Returns when no handshake runs."""
        if self._handshakes:
            await asyncio.wait(list(self._handshakes))

    async def cut(self) -> None:
        """Ends all handshakes."""
        for task in self._handshakes:
            task.cancel()
        await self.wait_until_done()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be accepted: %s", error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_PAUSE, self._resume, listening)
                return
            sock.setblocking(False)
            if len(self._handshakes) >= self._state.config.max_connections:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._shake_hands(sock))
            self._handshakes[task] = None
            task.add_done_callback(partial(self._on_done, sock))

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    async def _shake_hands(self, sock: socket.socket) -> None:
        """Shakes hands, and calls the protocol's `connection_made` if that succeeds."""
        task = asyncio.current_task()
        assert task is not None
        on_safe = partial(self._handshakes.pop, task, None)
        try:
            await self._loop.connect_accepted_socket(
                lambda: _SafeConnection(self._state, on_safe),
                sock,
                ssl=self._credentials.context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT,
            )
        except OSError as error:  # ssl.SSLError is one too
            logger.debug("a TLS handshake failed: %s", error)

    def _on_done(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():
            sock.close()  # no transport has it if that came before the first step of the task
        elif (error := task.exception()) is not None:
            logger.error("a TLS handshake failed", exc_info=error)
