from __future__ import annotations

import asyncio
import time

from bench.endurance.own_stalls import own_stalls


async def test_a_turn_that_takes_long_is_seen() -> None:
    async with own_stalls() as stalls:
        await asyncio.sleep(0.06)
        time.sleep(0.3)  # noqa: ASYNC251 - as a process that has no core
        await asyncio.sleep(0.06)
    assert stalls.longest > 0.2
