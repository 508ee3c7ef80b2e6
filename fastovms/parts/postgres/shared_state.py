"""Opens the state that several servers share in PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import psycopg

from fastovms.errors import ConfigurationError
from fastovms.parts.postgres.database import DatabaseLink, PostgresDatabase
from fastovms.parts.postgres.schema import CHANNEL, UnsupportedVersion
from fastovms.parts.postgres.server_address import ServerAddress, may_have_password, read_address
from fastovms.server_config import StateConfig
from fastovms.state.database import DatabaseUnavailable, StateBounds
from fastovms.state.running_responses import Replica
from fastovms.state.state_store import StateStore
from fastovms.state.store import Watch, Watchers
from fastovms.state.tables import Clock

logger = logging.getLogger(__name__)

_FIRST_DELAY: Final = 0.25
_MAX_DELAY: Final = 10.0
"""The maximum seconds between two connection attempts; each delay is twice the previous one."""


class NotificationListener(Watchers):
    """Wakes the watchers of a topic when another replica notifies it. Listening begins with the
    first watch. While no connection is open, watchers rely on polling."""

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
            except Exception as error:  # an error of psycopg, or no free descriptor
                logger.debug("response store: notifications of other servers are lost: %s", error)
            await asyncio.sleep(self._delay)
            self._delay = min(2 * self._delay, _MAX_DELAY)

    async def _listen(self) -> None:
        """Receives notifications and wakes watchers until the connection ends. Raises psycopg.Error
        or StateFailed if the connection cannot be opened or is lost."""
        connection = await psycopg.AsyncConnection.connect(
            **self._address.connection_parameters(),  # type: ignore[arg-type]
            autocommit=True,
        )
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            self._delay = _FIRST_DELAY
            self.wake_all()  # notifications before LISTEN are lost
            async for notification in connection.notifies():
                self.wake(notification.payload)


_ID_LENGTH: Final = 8
"""Bytes of a replica's id."""

_TIMEOUT: Final = 20.0
"""The maximum seconds of an operation, waiting included."""


def open_shared_state(
    config: StateConfig, bounds: StateBounds, environ: Mapping[str, str], clock: Clock
) -> StateStore:
    """Returns a store in the database that the operator chose. While the database cannot be
    reached, operations fail; there is no fallback to memory, which other servers would not see.
    Raises ConfigurationError if the URL is invalid, the password cannot be read, or the database
    has an unsupported version."""
    assert config.state_url is not None
    address = read_address(config.state_url, config.password_file, environ)
    if may_have_password(config.state_url):
        logger.warning(
            "--state-url may have a password in it, which other users of the machine can see: "
            "prefer --state-password-file"
        )
    link = DatabaseLink(address)
    replica = Replica(secrets.token_hex(_ID_LENGTH), config.lease)
    databases = [
        PostgresDatabase(link, bounds, clock, replica=replica, only_reads=number % 2 == 1)
        for number in range(config.num_connections)
    ]
    try:
        databases[0].connect()
    except UnsupportedVersion as error:
        raise ConfigurationError(f"cannot keep the state in {address}: {error}") from None
    except DatabaseUnavailable:
        pass  # the link has logged the error
    listened = address
    if config.listen_url is not None:
        listened = read_address(config.listen_url, config.password_file, environ)
    return StateStore(
        *databases[::2],
        readers=databases[1::2],
        replica=replica,
        watchers=NotificationListener(listened),
        timeout=_TIMEOUT,
    )
