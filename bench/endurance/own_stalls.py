"""How long an attacking process was kept from its own event loop: what it has not seen in that time
is no fault of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_INTERVAL = 0.05
"""Seconds between two looks."""


@dataclass(slots=True)
class OwnStalls:
    """`longest` is how late the loop came to a timer at most, in seconds."""

    longest: float = 0.0


@asynccontextmanager
async def own_stalls() -> AsyncIterator[OwnStalls]:
    """Watches the running loop for as long as the block runs."""
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
