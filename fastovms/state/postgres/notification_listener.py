"""Hears from PostgreSQL what other replicas have changed, on a connection of its own: whoever
listens has a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from fastovms.errors import StateFailed
from fastovms.state.postgres.server_address import ServerAddress
from fastovms.state.postgres.shared_tables import CHANNEL
from fastovms.state.watchers import Watch, Watchers

logger = logging.getLogger(__name__)

_FIRST_DELAY: Final = 0.25
_MAX_DELAY: Final = 10.0
"""The most seconds between two attempts to connect; each delay is twice the one before."""


class NotificationListener(Watchers):
    """Wakes those who watch a topic when a replica notifies it. It listens from the first watch on.
    Where it cannot, nobody is woken, and who watches looks by itself."""

    def __init__(self, address: ServerAddress) -> None:
        super().__init__()
        self._address = address
        self._delay = _FIRST_DELAY
        self._listening: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, topic: str) -> Iterator[Watch]:
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._keep_listening())
        with super().watch(topic) as watch:
            yield watch

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._listen()
            except (psycopg.Error, StateFailed) as error:
                logger.debug("what other servers tell is missed: %s", error)
            await asyncio.sleep(self._delay)
            self._delay = min(2 * self._delay, _MAX_DELAY)

    async def _listen(self) -> None:
        """Wakes those whom notifications are for, as long as the connection lasts.

        Raises:
            psycopg.Error, StateFailed: it cannot be had, or is lost.
        """
        connection = await psycopg.AsyncConnection.connect(
            **self._address.connection_parameters(),  # type: ignore[arg-type]
            autocommit=True,
        )
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            self._delay = _FIRST_DELAY
            self.wake_all()  # for what was told before
            async for notification in connection.notifies():
                self.wake(notification.payload)
