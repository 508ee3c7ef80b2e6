"""Serves HTTP: binds, listens, drains and closes."""

from __future__ import annotations

import asyncio
import math
import select
from collections.abc import Callable, Sequence

from fastovms.config import HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.http.listeners import (
    Acceptor,
    BoundSockets,
    Listener,
    TlsCredentials,
    bind_all,
    is_local,
    raise_file_limit,
)
from fastovms.http.messages import Headers, Observer, Request
from fastovms.http.routing import Dispatcher
from fastovms.http.writers import ServerState

# Seconds for accepting the queued connections at shutdown. The loop accepts thousands a second.
_ACCEPT_TIMEOUT = 2.0


class HttpServer:
    """An HTTP server with the handlers of a dispatcher.

    Args:
        dispatcher: finds handlers and refuses requests.
        observers: called with each finished request; must be fast.
        bound: the sockets to listen on; None = `bind` binds the configured addresses.
        memory_left, client_of: see `ServerState`.

    Attributes:
        addresses: the URLs of the server, such as "http://127.0.0.1:8000"; known once bound.
        is_local: whether only this machine can reach the addresses; known once bound.
    """

    def __init__(
        self,
        config: HttpConfig,
        dispatcher: Dispatcher,
        *,
        observers: Sequence[Observer] = (),
        bound: BoundSockets | None = None,
        memory_left: Callable[[], float] = lambda: math.inf,
        client_of: Callable[[str, Headers], str] = lambda peer, _: peer,
    ) -> None:
        self._config = config
        self._observers = tuple(observers)
        self._bound = bound
        self._dispatcher = dispatcher
        self._memory_left = memory_left
        self._client_of = client_of
        self._tls: TlsCredentials | None = None
        self._listeners: list[Listener] = []
        self._acceptor: Acceptor | None = None
        self._state: ServerState | None = None
        self.addresses: list[str] = []
        self.is_local = False

    @property
    def num_requests(self) -> int:
        """The number of requests that are being answered."""
        return 0 if self._state is None else len(self._state.tasks)

    @property
    def num_connections(self) -> int:
        """The number of open connections."""
        return 0 if self._state is None else len(self._state.connections)

    @property
    def num_handshakes(self) -> int:
        """The number of TLS connections in their handshake."""
        return 0 if self._acceptor is None else self._acceptor.num_handshakes

    @property
    def num_body_bytes(self) -> int:
        """The bytes of request bodies in memory."""
        return 0 if self._state is None else self._state.body_budget.used

    def bind(self) -> None:
        """Binds the addresses and reads the TLS files, without listening yet, so that errors are
        found before a model is loaded for minutes. A second call does nothing. Raises
        ConfigurationError if an address is not available, or a file cannot be used."""
        if self.addresses:
            return
        config = self._config
        if config.tls_certificate is not None:
            self._tls = TlsCredentials(config.tls_certificate, config.tls_key)
        elif config.tls_key is not None:
            raise ConfigurationError("a TLS key is given without a certificate")
        self._bound = self._bound or BoundSockets(bind_all(config), False)
        self._listeners = list(self._bound.listeners)
        self.addresses = [listener.url for listener in self._listeners]
        self.is_local = all(is_local(listener.sock) for listener in self._listeners)

    async def start(self) -> None:
        """Listens; calls `bind` if that was not called before. Raises ConfigurationError if an
        address is not available, or a file cannot be used."""
        self.bind()
        loop = asyncio.get_running_loop()
        state = ServerState(
            self._config,
            self._dispatcher,
            loop,
            self._observers,
            memory_left=self._memory_left,
            client_of=self._client_of,
        )
        state.max_connections = raise_file_limit(self._config.max_connections)
        self._state = state
        self._acceptor = Acceptor(state, self._tls)
        for listener in self._listeners:
            try:
                self._acceptor.listen(listener.sock)
            except OSError as error:
                await self.close()
                reason = error.strerror or error
                raise ConfigurationError(f"cannot listen on {listener.url}: {reason}") from None

    def requests(self) -> list[Request]:
        """Returns the requests that are being answered, are queued, or are still being read."""
        connections = () if self._state is None else tuple(self._state.connections)
        return [request for connection in connections for request in connection.requests()]

    def cut(self, is_ended: Callable[[Request], bool]) -> int:
        """Resets the connections with a request for which `is_ended` returns True. Returns their
        number."""
        connections = () if self._state is None else tuple(self._state.connections)
        ended = [one for one in connections if any(map(is_ended, one.requests()))]
        for connection in ended:
            connection.cut()
        return len(ended)

    def reload_tls(self) -> None:
        """Reads certificate and key again, for connections made from now on. Raises
        ConfigurationError if the files are invalid; the old ones stay in use."""
        if self._tls is not None:
            self._tls.reload()

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109 (a part of its meaning)
        """Stops accepting connections and waits for running requests, for at most `timeout`
        seconds. `close` ends the remaining connections. May be called again with another
        timeout."""
        state = self._state
        if state is None:
            return
        if not state.draining:
            state.draining = True
            await self._accept_queued(min(timeout, _ACCEPT_TIMEOUT))
            self._stop_listening()
            await asyncio.sleep(0)  # let the loop call `connection_made` of the last connection
            for connection in list(state.connections):
                connection.drain()
        try:
            async with asyncio.timeout(timeout):
                if self._acceptor is not None:
                    await self._acceptor.wait_until_done()
                await state.wait_until_empty()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Ends everything at once: handlers are cancelled, connections reset."""
        self._stop_listening()
        state = self._state
        if state is None:
            return
        state.draining = True
        if self._acceptor is not None:
            await self._acceptor.cut()
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._config.close_timeout)
        for connection in list(state.connections):
            connection.cut()
        await state.wait_until_empty()

    async def _accept_queued(self, seconds: float) -> None:
        """Accepts the connections in the kernel's queue, because closing a listener would reset
        them. Not needed for inherited sockets, which stay open in the parent."""
        queues = select.poll()
        if self._bound is None or not self._bound.are_inherited:
            for listener in self._listeners:
                queues.register(listener.sock, select.POLLIN)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while queues.poll(0) and loop.time() < end:  # noqa: ASYNC110 (it sleeps for no time)
            await asyncio.sleep(0)  # a pass of the loop takes one connection from each queue

    def _stop_listening(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for listener in self._listeners:
            listener.sock.close()
            listener.remove_path()
        self._listeners.clear()
