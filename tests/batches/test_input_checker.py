"""Inputs are checked one at a time, in threads that nothing has to wait for."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fastovms.batches import input_checker
from fastovms.batches.input_check import CheckedInput, InputRules
from fastovms.batches.input_checker import InputChecker
from fastovms.batches.pace import Pace, Stopped
from tests.batches.test_input_check import URL, line

RULES = InputRules(URL, {URL}.__contains__, lambda name, url: name, 10)


async def test_an_input_is_checked(tmp_path) -> None:
    (tmp_path / "in").write_text(line())
    assert (await InputChecker().check(tmp_path / "in", RULES)).num_requests == 1
    with pytest.raises(OSError, match="No such file"):
        await InputChecker().check(tmp_path / "none", RULES)


class Checks:
    """Checks that go on until each may end, or is stopped."""

    def __init__(self) -> None:
        self.begun: list[threading.Thread] = []
        self.may_end = threading.Event()
        self.num_stopped = 0

    def check(self, path, rules: InputRules, pace: Pace) -> CheckedInput:
        self.begun.append(threading.current_thread())
        while not self.may_end.is_set():
            try:
                pace.spend(1)
            except Stopped:
                self.num_stopped += 1
                raise
            time.sleep(0.001)
        return CheckedInput()

    async def have_begun(self, count: int) -> None:
        while len(self.begun) < count:  # noqa: ASYNC110 (threads begin)
            await asyncio.sleep(0.001)


@pytest.fixture
def checks(monkeypatch) -> Checks:
    checks = Checks()
    monkeypatch.setattr(input_checker, "check_input", checks.check)
    return checks


async def test_one_at_a_time_apart_from_other_work(tmp_path, checks) -> None:
    checker = InputChecker()
    tasks = [asyncio.ensure_future(checker.check(tmp_path, RULES)) for _ in range(100)]
    await checks.have_begun(1)
    await asyncio.sleep(0.01)
    assert len(checks.begun) == 1
    async with asyncio.timeout(20):
        assert await asyncio.to_thread(lambda: 5) == 5
    checks.may_end.set()
    await asyncio.gather(*tasks)
    assert len(checks.begun) == 100


async def test_who_is_cancelled_ends_the_thread(tmp_path, checks) -> None:
    checker = InputChecker()
    task = asyncio.ensure_future(checker.check(tmp_path, RULES))
    await checks.have_begun(1)
    assert checks.begun[0].daemon
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(checks.begun[0].join, 20)
    assert checks.num_stopped == 1
    checks.may_end.set()
    await checker.check(tmp_path, RULES)
