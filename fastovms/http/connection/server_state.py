"""Holds what all connections of a server share, counts them, makes the ids of requests, and tells
observers of those that are over."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from fastovms.config.http_config import HttpConfig
from fastovms.http.connection.forwarded import ForwardedClients
from fastovms.http.connection.response_writer import ResponseWriter
from fastovms.http.connection.turnstile import Turnstile
from fastovms.http.connection.wire import Outbox
from fastovms.http.parsing.body_budget import BodyBudget
from fastovms.http.routing.dispatch import Dispatcher
from fastovms.http.routing.exchange import Exchange, Observer
from fastovms.http.routing.messages import Request, Response
from fastovms.quoting import is_id

logger = logging.getLogger(__name__)

_MAX_REQUEST_ID = 128


class ManagedConnection(Protocol):
    """What the server does to a connection."""

    def drain(self) -> None:
        """Closes after the next answer, or soon if it is idle and stays it."""

    def cut(self) -> None:
        """Resets the connection."""

    def requests(self) -> Iterator[Request]:
        """Yields the requests that are being answered, wait, or are still being read."""


class ServerState:
    """The parts and counters that connections share.

    Args:
        clock: tells seconds, also within a pass of the loop.

    Attributes:
        draining: whether every answer from now on is its connection's last.
        connections: those open.
        tasks: the handlers at work, also those of lost connections.
    """

    def __init__(
        self,
        config: HttpConfig,
        dispatcher: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config = config
        self.dispatcher = dispatcher
        self.loop = loop
        self.observers = tuple(observers)
        self.writer = ResponseWriter()
        self.forwarded = ForwardedClients(config.forwarded_allow_ips)
        self.body_budget = BodyBudget(config.max_buffered_bodies)
        self.outbox = Outbox(loop)
        self.turnstile = Turnstile(loop, clock)
        self.read_turnstile = Turnstile(loop, clock)
        self.connections: set[ManagedConnection] = set()
        self.tasks: set[asyncio.Future[Response | None]] = set()
        self.draining = False
        self._id_prefix = secrets.token_hex(6)
        self._ids = itertools.count(1)
        self._empty: asyncio.Future[None] | None = None

    def add(self, connection: ManagedConnection) -> bool:
        """Enters a connection; False = it is one too many."""
        self.connections.add(connection)
        return len(self.connections) <= self.config.max_connections

    def remove(self, connection: ManagedConnection) -> None:
        self.connections.discard(connection)
        if not self.connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def wait_until_empty(self) -> None:
        """Returns when no connection is open."""
        if self.connections:
            self._empty = self.loop.create_future()
            await self._empty

    def give_back_body(self, request: Request) -> None:
        """Takes note that the request's body is no longer needed. To be called once."""
        if request.sink is not None:
            request.sink.close()
        if request.body:
            self.body_budget.give_back(request.sender, len(request.body))

    def request_id(self, given: str | None) -> str:
        """Returns the client's id when it is up to 128 visible ASCII characters, else a new one."""
        if given and is_id(given, _MAX_REQUEST_ID):
            return given
        return f"{self._id_prefix}-{next(self._ids):x}"

    def report(self, exchange: Exchange) -> None:
        for observer in self.observers:
            try:
                observer(exchange)
            except Exception:
                logger.exception("an observer of requests failed")
