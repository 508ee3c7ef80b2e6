"""Much work is done in a thread, little at once."""

from __future__ import annotations

import threading

import pytest

from fastovms.api import offload


@pytest.mark.parametrize(
    ("cost", "in_a_thread"), [(0, False), (offload.MUCH - 1, False), (offload.MUCH, True)]
)
async def test_where_it_is_done(cost: int, in_a_thread: bool) -> None:
    worker = await offload.run(threading.current_thread, cost)
    assert (worker is not threading.current_thread()) is in_a_thread


@pytest.mark.parametrize("cost", [0, offload.MUCH])
async def test_exception_of_offloaded_work_is_raised(cost: int) -> None:
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0, cost)
