"""Work that may be too long for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def run(work: Callable[[], T], *, is_long: bool) -> T:
    """Does the work, in a thread if it is long."""
    return await asyncio.to_thread(work) if is_long else work()
