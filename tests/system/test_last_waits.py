from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fastovms.system import last_waits
from fastovms.system.last_waits import LastWaits, LeavableExecutor


async def test_waits_share_their_time(monkeypatch, caplog):
    monkeypatch.setattr(last_waits, "_LEAST", 0.0)
    waits = LastWaits(0.05)
    was_cancelled = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    start = time.monotonic()
    assert await waits.wait("quick", asyncio.sleep(0))
    assert not await waits.wait("slow", hang())
    assert was_cancelled.is_set()
    assert not await waits.wait("slower", hang())
    assert time.monotonic() - start < 5
    assert "shutdown: slow takes too long and is left behind" in caplog.text
    assert "quick" not in caplog.text


@pytest.mark.parametrize("most", [None, 0.01])
async def test_failure_is_logged_and_not_raised(caplog, most):
    async def fail() -> None:
        raise OSError("no disk")

    assert await LastWaits(5.0).wait("the disk", fail(), most)
    assert "shutdown: the disk has failed" in caplog.text


async def test_one_wait_may_have_less_time():
    start = time.monotonic()
    assert not await LastWaits(60.0).wait("slow", asyncio.Event().wait(), 0.01)
    assert time.monotonic() - start < 20


def test_executor_leaves_a_thread_that_hangs():
    executor, go = LeavableExecutor(1), threading.Event()
    future = executor.submit(go.wait)
    executor.shutdown()
    assert not future.done()
    go.set()
    future.result(5)
