"""Measures how long the attacking process was kept from its own event loop. Delays in that time are
not the server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_INTERVAL = 0.05
"""The seconds between two timers."""


@dataclass(slots=True)
class OwnStalls:
    """The longest delay of a timer of the loop: `longest`, in seconds."""

    longest: float = 0.0


@asynccontextmanager
async def own_stalls() -> AsyncIterator[OwnStalls]:
    """Watches the running loop until the end of the block."""
    stalls = OwnStalls()
    watching = asyncio.create_task(_watch(stalls))
    try:
        yield stalls
    finally:
        watching.cancel()


async def _watch(stalls: OwnStalls) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _INTERVAL
        await asyncio.sleep(_INTERVAL)
        stalls.longest = max(stalls.longest, loop.time() - due)
