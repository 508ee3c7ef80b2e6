"""Tests of `fastovms/system/threads.py`."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fastovms.system import threads as last_waits
from fastovms.system.threads import (
    DetachableExecutor,
    DiskThreads,
    ShutdownWaits,
    in_daemon_thread,
    run_to_end,
)

# Work in a thread ends a future, unless nobody waits any more.


async def test_thread_call_returns_and_raises() -> None:
    async with asyncio.timeout(60):
        thread = await in_daemon_thread("name", threading.current_thread)
        assert (thread.name, thread.daemon) == ("name", True)
        with pytest.raises(ZeroDivisionError):
            await in_daemon_thread("name", lambda: 1 // 0)


async def test_result_of_a_cancelled_future_is_ignored() -> None:
    go = threading.Event()
    future = in_daemon_thread("name", go.wait)
    future.cancel()
    go.set()
    async with asyncio.timeout(60):
        await in_daemon_thread("name", lambda: None)  # its call comes after the first one's
    assert future.cancelled()


# Work for disks has threads of its own, and comes to its end.


async def test_disk_threads_what_it_returns_and_raises() -> None:
    threads = DiskThreads("disk", 1)
    assert (await threads.run(threading.current_thread)).name.startswith("disk")
    assert await threads.run(int, "11", base=2) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.run(int, "x")
    await threads.close()


async def test_hanging_disk_threads_do_not_block_other_threads() -> None:
    threads = DiskThreads("disk")
    go = threading.Event()
    hanging = [threads.begin(go.wait) for _ in range(100)]
    async with asyncio.timeout(60):
        await asyncio.to_thread(int)
    go.set()
    await threads.close()
    assert all(work.done() for work in hanging)


async def test_closing_waits_for_work_and_what_that_leads_to() -> None:
    threads = DiskThreads("disk", 1)
    go = threading.Event()
    done: list[str] = []
    first = threads.begin(go.wait)
    first.add_done_callback(lambda _: threads.begin(done.append, "second"))
    closing = asyncio.ensure_future(threads.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    assert done == ["second"]
    with pytest.raises(RuntimeError, match="after shutdown"):
        threads.begin(int)


async def test_waits_share_their_time(monkeypatch, caplog):
    monkeypatch.setattr(last_waits, "_LEAST", 0.0)
    waits = ShutdownWaits(0.05)
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
    assert time.monotonic() - start < 30
    assert "shutdown: slow takes too long and is abandoned" in caplog.text
    assert "quick" not in caplog.text


@pytest.mark.parametrize("most", [None, 0.01])
async def test_failure_is_logged_and_not_raised(caplog, most):
    async def fail() -> None:
        raise OSError("no disk")

    assert await ShutdownWaits(5.0).wait("the disk", fail(), most)
    assert "shutdown: the disk failed" in caplog.text


async def test_one_wait_may_have_less_time():
    start = time.monotonic()
    assert not await ShutdownWaits(60.0).wait("slow", asyncio.Event().wait(), 0.01)
    assert time.monotonic() - start < 30


def test_executor_leaves_a_thread_that_hangs():
    executor, go = DetachableExecutor(1), threading.Event()
    future = executor.submit(go.wait)
    executor.shutdown()
    assert not future.done()
    go.set()
    future.result(60)


# A cancellation comes after the work, not into it.


async def test_run_to_end_what_it_returns_and_raises() -> None:
    async def work(text: str) -> int:
        return int(text)

    assert await run_to_end(work("1")) == 1
    with pytest.raises(ValueError, match="invalid literal"):
        await run_to_end(work("x"))


@pytest.mark.parametrize("fails", [False, True])
async def test_cancelled_disk_call_is_completed(fails: bool) -> None:
    go = asyncio.Event()
    is_done = False

    async def work() -> None:
        nonlocal is_done
        await go.wait()
        is_done = True
        if fails:
            raise OSError("broken")

    task = asyncio.ensure_future(run_to_end(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_done
