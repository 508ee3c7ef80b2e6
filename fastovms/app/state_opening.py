"""Opens the response store by the operator's configuration."""

from __future__ import annotations

from collections.abc import Mapping

from fastovms.server_config import StateConfig
from fastovms.state.database import StateBounds
from fastovms.state.sqlite.location import open_location
from fastovms.state.state_store import StateStore
from fastovms.state.tables import Clock


def open_store(config: StateConfig, environ: Mapping[str, str], clock: Clock) -> StateStore | None:
    """Opens the response store; None = responses are not stored. With a database, the state
    directory holds only files, batches and the prefix cache. Raises ConfigurationError if the
    location cannot be used."""
    if not config.enable_store:
        return None
    bounds = StateBounds(config.max_age, config.max_objects, config.max_bytes)
    if config.state_url is not None:
        from fastovms.parts.postgres.server_address import extra_needed

        with extra_needed():
            from fastovms.parts.postgres.shared_state import open_shared_state
        return open_shared_state(config, bounds, environ, clock)
    return StateStore(open_location(config, bounds, environ, clock))
