"""Writes the events of a response to the store while it runs, for those who follow it through other
replicas, and for what is told of it after a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from fastovms.api.responses.stored.event_log import EventLog, pack_frames
from fastovms.errors import StateFailed, TooLarge
from fastovms.state.store import EventPack, ResponseKey, StateStore

logger = logging.getLogger(__name__)

SHARED_INTERVAL: Final = 0.1
"""Seconds between two writes of one response where other replicas wait for them."""

_OWN_INTERVAL: Final = 1.0
"""Seconds where nobody reads them but after a crash: each write wears the disk."""

_RETRY: Final = 1.0
"""Seconds until a write that failed is tried again."""


async def write_events(
    log: EventLog, store: StateStore, key: ResponseKey, on_loss: Callable[[], None]
) -> None:
    """Writes what a log has and gets, until it is cancelled: one write at a time, and each has all
    that has come since the last.

    Args:
        on_loss: called, at the end, when the response is no longer this replica's.
    """
    interval = _OWN_INTERVAL if store.lease is None else SHARED_INTERVAL
    more = asyncio.Event()
    next_number = 0
    log.listen(more, more.set)
    try:
        while True:
            more.clear()
            while next_number < log.num_events:
                frames = log.read(next_number)
                try:
                    is_own = await store.add_events(
                        *key, EventPack(next_number, pack_frames(frames))
                    )
                except StateFailed:
                    await asyncio.sleep(_RETRY)
                    continue
                except TooLarge as error:
                    logger.warning("events of response %s are not kept: %s", key.id, error)
                    return
                if not is_own:
                    on_loss()
                    return
                next_number += len(frames)
            await asyncio.sleep(interval)
            await more.wait()
    finally:
        log.forget(more)
