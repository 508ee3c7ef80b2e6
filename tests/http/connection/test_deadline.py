"""Moving a deadline is cheap, and it is still kept."""

from __future__ import annotations

import asyncio

from fastovms.http.connection.deadline import Deadline
from tests.http.fake_transport import VirtualLoop

loop_factory = VirtualLoop


class Counted:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, VirtualLoop)
        self.start = self.loop.time()
        self.calls: list[float] = []
        self.deadline = Deadline(self.loop, self.call)
        self._num_timers = self.loop.num_timers

    def call(self) -> None:
        self.calls.append(round(self.loop.time() - self.start, 3))

    def set(self, seconds: float) -> None:
        self.deadline.set(self.start + seconds)

    @property
    def num_timers(self) -> int:
        assert isinstance(self.loop, VirtualLoop)
        return self.loop.num_timers - self._num_timers


async def test_it_calls_once_at_its_time() -> None:
    counted = Counted()
    counted.set(5)
    await asyncio.sleep(4.9)
    assert counted.calls == []
    await asyncio.sleep(20)
    assert counted.calls == [5]


async def test_moving_it_back_sets_no_timer() -> None:
    counted = Counted()
    for step in range(100):
        counted.set(5 + step / 100)
    assert counted.num_timers == 1
    await asyncio.sleep(20)
    assert counted.calls == [5.99]


async def test_moving_it_forward() -> None:
    counted = Counted()
    counted.set(50)
    counted.set(2)
    await asyncio.sleep(60)
    assert counted.calls == [2]


async def test_clear_and_set_again() -> None:
    counted = Counted()
    counted.set(2)
    counted.deadline.clear()
    await asyncio.sleep(10)
    assert counted.calls == []
    counted.set(12)
    await asyncio.sleep(10)
    assert counted.calls == [12]


async def test_close_forgets_everything() -> None:
    counted = Counted()
    counted.set(2)
    counted.deadline.close()
    await asyncio.sleep(10)
    assert counted.calls == []
