"""The HTTP server: listens, drains and closes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastovms.config import HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.http.dispatch import CrossOrigin, Dispatcher
from fastovms.http.messages import Check, ErrorRenderer
from fastovms.http.protocol import Connection
from fastovms.http.router import Router
from fastovms.http.state import Observer, ServerState


class HttpServer:
    """Serves a router's handlers.

    Args:
        render_error: shapes every error that this layer answers.
        authenticate: refuses strangers, before routing; OPTIONS is exempt.
        checks: further looks at the head of a routed request, before its body is read.
        cross_origin: the fields that browsers of other origins ask for.
        observers: told of each request when it is over. They must be quick and must not raise.
    """

    def __init__(
        self,
        config: HttpConfig,
        router: Router,
        *,
        render_error: ErrorRenderer,
        authenticate: Check | None = None,
        checks: Sequence[Check] = (),
        cross_origin: CrossOrigin | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._config = config
        self._observers = tuple(observers)
        self._dispatcher = Dispatcher(
            router,
            render_error,
            authenticate=authenticate,
            checks=checks,
            cross_origin=cross_origin,
        )
        self._listeners: list[asyncio.Server] = []
        self._state: ServerState | None = None
        self.addresses: list[str] = []

    @property
    def num_connections(self) -> int:
        return 0 if self._state is None else len(self._state.connections)

    async def start(self) -> None:
        """Listens.

        Raises:
            ConfigurationError: an address cannot be had.
        """
        loop = asyncio.get_running_loop()
        state = self._state = ServerState(self._config, self._dispatcher, loop, self._observers)
        config = self._config
        try:
            server = await loop.create_server(
                lambda: Connection(state), config.host, config.port, backlog=config.backlog
            )
        except OSError as error:
            reason = error.strerror or error
            raise ConfigurationError(
                f"cannot listen on {config.host}:{config.port}: {reason}"
            ) from None
        self._listeners.append(server)
        for sock in server.sockets:
            host, port = sock.getsockname()[:2]
            self.addresses.append(
                f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            )

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109 (a part of its meaning)
        """Stops accepting and lets running requests end, for at most `timeout` seconds. Connections
        that are still open then are left to `close`."""
        state = self._state
        if state is None:
            return
        state.draining = True
        # What the kernel has already accepted for us gets an answer: one pass of the loop takes
        # every connection out of the listening queue, the next one reads from them.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for listener in self._listeners:
            listener.close()
        for connection in list(state.connections):
            connection.drain()
        try:
            async with asyncio.timeout(timeout):
                await state.wait_until_empty()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Ends everything at once: handlers are cancelled, connections reset."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        state = self._state
        if state is None:
            return
        state.draining = True
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(state.connections):
            connection.cut()
        await state.wait_until_empty()
