"""Runs long work in a thread so that it does not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

MUCH: Final = 2000
"""The units of work from which it is run in a thread, so that streams do not wait.
A unit is a byte to render, a character to encode, a token to decode or a log probability to
format."""


async def run(work: Callable[[], T], cost: int) -> T:
    """Returns the result of `work`, which runs in a thread if its cost is at least `MUCH` units."""
    return await asyncio.to_thread(work) if cost >= MUCH else work()
