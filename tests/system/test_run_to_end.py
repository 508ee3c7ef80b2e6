"""A cancellation comes after the work, not into it."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.system.run_to_end import run_to_end


async def test_what_it_returns_and_raises() -> None:
    async def work(text: str) -> int:
        return int(text)

    assert await run_to_end(work("1")) == 1
    with pytest.raises(ValueError, match="invalid literal"):
        await run_to_end(work("x"))


@pytest.mark.parametrize("fails", [False, True])
async def test_who_is_cancelled_finds_it_done(fails: bool) -> None:
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
