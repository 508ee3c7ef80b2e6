"""Work in a thread ends a future, unless nobody waits any more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fastovms.system.daemon_thread import in_daemon_thread


async def test_what_it_returns_and_raises() -> None:
    async with asyncio.timeout(20):
        thread = await in_daemon_thread("name", threading.current_thread)
        assert (thread.name, thread.daemon) == ("name", True)
        with pytest.raises(ZeroDivisionError):
            await in_daemon_thread("name", lambda: 1 // 0)


async def test_nobody_waits() -> None:
    go = threading.Event()
    future = in_daemon_thread("name", go.wait)
    future.cancel()
    go.set()
    async with asyncio.timeout(20):
        await in_daemon_thread("name", lambda: None)  # its call comes after the first one's
    assert future.cancelled()
