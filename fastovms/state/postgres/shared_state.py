"""Opens the store in a PostgreSQL database."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Final

from fastovms.config.service_config import StateConfig
from fastovms.errors import ConfigurationError
from fastovms.state.postgres.database_link import DatabaseLink
from fastovms.state.postgres.notification_listener import NotificationListener
from fastovms.state.postgres.postgres_connection import Unreachable
from fastovms.state.postgres.postgres_database import PostgresDatabase
from fastovms.state.postgres.postgres_schema import OtherVersion
from fastovms.state.postgres.server_address import ServerAddress, may_have_password, read_address
from fastovms.state.running_responses import Replica
from fastovms.state.state_database import StateBounds
from fastovms.state.tables import Clock
from fastovms.state.threaded_store import ThreadedStore

logger = logging.getLogger(__name__)

_ID_LENGTH: Final = 8
"""Bytes of a replica's id."""

_TIMEOUT: Final = 20.0
"""Seconds that an operation may take, its wait included."""


def open_shared_state(
    config: StateConfig, bounds: StateBounds, environ: Mapping[str, str], clock: Clock
) -> ThreadedStore:
    """Returns a store in the database that the operator chose. Where that cannot be reached, there
    is one all the same, which fails until it can: what one server kept for itself, the others would
    not know.

    Raises:
        ConfigurationError: the URL is none, the password cannot be read, or the database is of a
            version that this server does not know.
    """
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
    except OtherVersion as error:
        raise ConfigurationError(f"cannot keep the state in {address}: {error}") from None
    except Unreachable:
        pass  # the link has said so
    return ThreadedStore(
        *databases[::2],
        readers=databases[1::2],
        replica=replica,
        watchers=NotificationListener(_listen_address(config, environ) or address),
        timeout=_TIMEOUT,
    )


def _listen_address(config: StateConfig, environ: Mapping[str, str]) -> ServerAddress | None:
    if config.listen_url is None:
        return None
    return read_address(config.listen_url, config.password_file, environ)
