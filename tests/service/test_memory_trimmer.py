from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fastovms.service import memory_trimmer
from fastovms.service.memory_trimmer import MemoryTrimmer


async def test_memory_is_trimmed_again_and_again_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_trimmer, "FIRST", 0.001)
    monkeypatch.setattr(memory_trimmer, "INTERVAL", 0.001)
    loop = asyncio.get_running_loop()
    threads: list[threading.Thread] = []
    thrice = asyncio.Event()

    def trim() -> None:
        threads.append(threading.current_thread())
        if len(threads) == 3:
            loop.call_soon_threadsafe(thrice.set)

    trimmer = MemoryTrimmer(trim)
    trimmer.start(loop)
    await asyncio.wait_for(thrice.wait(), 10)
    trimmer.stop()
    assert threading.current_thread() not in threads


async def test_a_trim_that_fails_is_logged_and_those_after_it_come_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_trimmer, "FIRST", 0.001)
    monkeypatch.setattr(memory_trimmer, "INTERVAL", 0.001)
    loop = asyncio.get_running_loop()
    alone, num_calls, thrice = threading.Lock(), 0, asyncio.Event()

    def trim() -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise ValueError("no")
        assert alone.acquire(blocking=False)
        time.sleep(0.02)
        alone.release()
        if num_calls == 3:
            loop.call_soon_threadsafe(thrice.set)

    trimmer = MemoryTrimmer(trim)
    trimmer.start(loop)
    await asyncio.wait_for(thrice.wait(), 10)
    trimmer.stop()
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError]


async def test_the_first_trim_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_trimmer, "FIRST", 0.001)
    loop, is_trimmed = asyncio.get_running_loop(), asyncio.Event()
    trimmer = MemoryTrimmer(lambda: loop.call_soon_threadsafe(is_trimmed.set) and None)
    trimmer.start(loop)
    await asyncio.wait_for(is_trimmed.wait(), 10)
    trimmer.stop()


async def test_nothing_is_trimmed_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_trimmer, "FIRST", 0.001)
    monkeypatch.setattr(memory_trimmer, "INTERVAL", 0.001)
    calls: list[None] = []
    trimmer = MemoryTrimmer(lambda: calls.append(None))
    trimmer.start(asyncio.get_running_loop())
    trimmer.stop()
    await asyncio.sleep(0.02)
    assert not calls
