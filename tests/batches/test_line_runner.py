"""Lines run until all are done, each once."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from fastovms.batches import line_runner
from fastovms.batches.batch_line import CANCELLED, AskLater, BatchLine, LineAnswer, parse_line
from fastovms.batches.line_runner import LineRunner
from fastovms.batches.result_log import ResultLog, ResultPaths
from fastovms.batches.slots import LineSlots
from fastovms.system.disk_threads import DiskThreads

NUM_LINES = 300


class Work:
    def __init__(self, path) -> None:
        self.input = path / "in"
        self.threads = DiskThreads("a")
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/", "body": {}}
            for number in range(1, NUM_LINES + 1)
        ]
        self.input.write_text("\n".join(map(json.dumps, lines)))
        self.paths = ResultPaths(path / "output", path / "errors")
        self.asked: list[str] = []
        self.most_at_once = 0
        self.slots = LineSlots(lambda: 5)
        self.stop_at = NUM_LINES + 1
        self.reached = asyncio.Event()

    async def ask(self, line: BatchLine) -> LineAnswer:
        self.asked.append(line.custom_id)
        self.most_at_once = max(self.most_at_once, self.slots.num_used)
        if len(self.asked) >= self.stop_at:
            self.reached.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return LineAnswer(400 if int(line.custom_id) % 50 == 0 else 200, "r", b"{}")

    def runner(self) -> tuple[LineRunner, ResultLog]:
        log = ResultLog(self.paths, "k", NUM_LINES, self.threads)
        log.open()
        return LineRunner(self.input, log, self.ask, self.slots, self.threads), log

    def results(self) -> list[str]:
        text = "".join(path.read_text() for path in self.paths)
        return sorted((json.loads(line)["custom_id"] for line in text.splitlines()), key=int)


ALL = [str(number) for number in range(1, NUM_LINES + 1)]


async def test_lines_that_wait_to_ask_again_leave_their_slots_to_other_batches(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    stuck, other = Work(tmp_path / "a"), Work(tmp_path / "b")
    other.slots = stuck.slots
    is_open = False
    asked: list[str] = []

    async def ask(line: BatchLine) -> LineAnswer | AskLater:
        asked.append(line.custom_id)
        return LineAnswer(200, "r", b"{}") if is_open else AskLater(0.001)

    stuck.ask = ask
    runner, _ = stuck.runner()
    task = asyncio.create_task(runner.run())
    await asyncio.wait_for(other.runner()[0].run(), 20)
    assert other.results() == ALL
    assert not task.done()
    assert len(set(asked)) <= 2 * 5  # no more lines than a few wait
    is_open = True
    await asyncio.wait_for(task, 20)
    assert stuck.results() == ALL
    assert stuck.slots.num_used == 0


async def test_a_batch_that_is_cancelled_while_its_lines_wait_has_no_slot(tmp_path) -> None:
    work = Work(tmp_path)
    asked = asyncio.Event()

    async def ask(line: BatchLine) -> AskLater:
        asked.set()
        return AskLater(60.0)

    work.ask = ask
    runner, _ = work.runner()
    task = asyncio.create_task(runner.run())
    await asked.wait()
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.slots.num_used == 0


async def test_all_lines(tmp_path) -> None:
    work = Work(tmp_path)
    runner, log = work.runner()
    await runner.run()
    assert work.results() == ALL
    assert work.asked == ALL
    assert (log.num_completed, log.num_failed) == (294, 6)
    assert work.most_at_once == 5
    assert work.slots.num_used == 0
    await log.close()


async def test_a_run_that_was_cut_goes_on(tmp_path) -> None:
    work = Work(tmp_path)
    work.stop_at = 100
    runner, log = work.runner()
    task = asyncio.ensure_future(runner.run())
    await work.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await log.flush()
    await log.close()
    assert 90 < len(work.results()) < 100
    assert work.slots.num_used == 0
    work.stop_at = 10_000
    runner, log = work.runner()
    await runner.run()
    await log.close()
    assert work.results() == ALL


async def test_what_is_not_run_is_told(tmp_path) -> None:
    work = Work(tmp_path)
    runner, log = work.runner()
    log.add(7, "7", LineAnswer(200, "r", b"{}"))
    await runner.skip_rest(CANCELLED)
    await log.close()
    assert work.results() == ALL
    assert work.asked == []
    assert (log.num_completed, log.num_failed) == (1, NUM_LINES - 1)


async def test_a_fault_ends_all(tmp_path) -> None:
    work = Work(tmp_path)
    runner, log = work.runner()
    await log.close()
    with pytest.raises(ExceptionGroup):
        await runner.run()
    assert work.slots.num_used == 0


async def test_lines_are_looked_at_in_threads(tmp_path, monkeypatch) -> None:
    """A long one would hold the event loop up."""

    def parse(line: bytes) -> BatchLine:
        assert threading.current_thread() is not threading.main_thread()
        return parse_line(line)

    monkeypatch.setattr(line_runner, "parse_line", parse)
    work = Work(tmp_path)
    runner, log = work.runner()
    await runner.run()
    assert work.results() == ALL
    await log.close()
