"""Work for disks has threads of its own, and comes to its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fastovms.system.disk_threads import DiskThreads


async def test_what_it_returns_and_raises() -> None:
    threads = DiskThreads("disk", 1)
    assert (await threads.run(threading.current_thread)).name.startswith("disk")
    assert await threads.run(int, "11", base=2) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.run(int, "x")
    await threads.close()


async def test_a_disk_that_hangs_holds_back_nothing_else() -> None:
    threads = DiskThreads("disk")
    go = threading.Event()
    hanging = [threads.begin(go.wait) for _ in range(100)]
    async with asyncio.timeout(20):
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
