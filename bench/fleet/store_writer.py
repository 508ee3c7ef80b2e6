"""Stores responses for some seconds, as one replica does for many clients, and prints how many:

python -m bench.fleet.store_writer STATE_URL SECONDS NUM_AT_ONCE
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final
from uuid import uuid4

import uvloop

from fastovms.app.state_opening import open_store
from fastovms.server_config import StateConfig
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import StoredItem, StoredResponse

_BODY: Final = b"x" * 1000
_ITEM: Final = b"x" * 400


async def write(url: str, seconds: float, num_at_once: int) -> int:
    """Returns how many responses were stored."""
    store = open_store(StateConfig(state_url=url), {}, time.time)
    assert store is not None
    end = time.monotonic() + seconds
    try:
        counts = await asyncio.gather(*(_write_until(end, store) for _ in range(num_at_once)))
    finally:
        await store.close()
    return sum(counts)


async def _write_until(end: float, store: StateStore) -> int:
    count = 0
    while time.monotonic() < end:
        id = uuid4().hex
        items = [StoredItem(f"{id}-{side}", _ITEM) for side in ("in", "out")]
        response = StoredResponse(f"resp_{id}", _BODY, items[:1], items[1:])
        await store.run(Operations.add_response, "tenant", response)
        count += 1
    return count


def main() -> None:
    url, seconds, num_at_once = sys.argv[1:]
    print(uvloop.run(write(url, float(seconds), int(num_at_once))))


if __name__ == "__main__":
    main()
