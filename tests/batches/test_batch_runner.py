"""Tests that batches are stored, run concurrently and are resumed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fastovms.errors import Overloaded, RequestError
from fastovms.parts.batches.records import BatchRecord, BatchStatus
from fastovms.parts.batches.runner import BatchRunner
from fastovms.server_config import BatchConfig
from tests.batches.test_records import new_record
from tests.batches.test_runner import Server


@pytest.fixture
async def server(tmp_path):
    server = Server(tmp_path)
    await server.add_input()
    yield server
    server.files.close()


def numbered(number: int, **fields):
    return new_record(
        id=f"batch_{number:032x}",
        output_id=f"file-o{number}",
        error_id=f"file-e{number}",
        created_at=1000 + number,
        **fields,
    )


async def idle(runner: BatchRunner) -> None:
    await asyncio.wait(runner._tasks.values())


@pytest.mark.slow
async def test_batches_belong_to_a_tenant_and_the_oldest_are_dropped(server, tmp_path) -> None:
    runner = BatchRunner(tmp_path / "batches", BatchConfig(max_kept=2), server.parts)
    for number in range(3):
        await runner.add(numbered(number, tenant="a"))
    assert [record.id[-1] for record in runner.list("a")] == ["0", "1", "2"]
    assert list(runner.list("b")) == []
    assert runner.find("b", f"batch_{0:032x}") is None
    with pytest.raises(RequestError, match="the input of a batch"):
        await server.files.delete("", "file-in")
    await idle(runner)
    assert runner.find("a", f"batch_{0:032x}").status is BatchStatus.COMPLETED
    await runner.add(numbered(4, tenant="a"))
    assert [record.id[-1] for record in runner.list("a")] == ["1", "2", "4"]
    await idle(runner)
    assert await server.files.delete("", "file-in")
    await runner.close()


async def test_next_process_runs_the_unfinished_batches(server, tmp_path) -> None:
    server.num_answers = 5
    first = BatchRunner(tmp_path / "batches", BatchConfig(), server.parts)
    await first.add(numbered(1))
    await server.stopped.wait()
    await first.close()
    server.num_answers = 10**9
    second = BatchRunner(tmp_path / "batches", BatchConfig(), server.parts)
    second.start()
    await idle(second)
    [record] = second.list("")
    assert record.status is BatchStatus.COMPLETED
    assert server.results(record) == list(range(1, 41))
    third = BatchRunner(tmp_path / "batches", BatchConfig(), server.parts)
    third.start()
    assert third.num_running == 0


async def test_unfinished_batches_are_bounded_and_can_be_cancelled(server, tmp_path) -> None:
    server.num_answers = 5
    runner = BatchRunner(tmp_path / "batches", BatchConfig(max_unfinished=1), server.parts)
    record = numbered(1)
    await runner.add(record)
    await server.stopped.wait()
    with pytest.raises(Overloaded, match="1 batches"):
        await runner.add(numbered(2))
    await runner.cancel(record)
    await idle(runner)
    assert record.status is BatchStatus.CANCELLED
    await runner.cancel(record)
    await runner.close()


class SlowDisk:
    """Delays records until the test allows them, and counts deletions."""

    def __init__(self, runner: BatchRunner, monkeypatch) -> None:
        self.may_write = threading.Event()
        self.writes = asyncio.Event()
        self.deleted: list[str] = []
        self._write = runner._records.write
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(runner._records, "write", self.write)
        monkeypatch.setattr(runner._records, "delete", self.delete)

    def write(self, id: str, record: BatchRecord) -> None:
        self._loop.call_soon_threadsafe(self.writes.set)
        assert self.may_write.wait(60)
        self._write(id, record)

    def delete(self, id: str) -> None:
        self.deleted.append(id)
        raise OSError("read-only")


async def test_batch_of_a_client_that_disconnects_is_created(server, tmp_path, monkeypatch) -> None:
    """Otherwise it would run after the next start without having been visible before."""
    runner = BatchRunner(tmp_path / "batches", BatchConfig(max_unfinished=1), server.parts)
    disk = SlowDisk(runner, monkeypatch)
    task = asyncio.ensure_future(runner.add(numbered(1)))
    await disk.writes.wait()
    task.cancel()
    with pytest.raises(Overloaded):
        await runner.add(numbered(2))
    with pytest.raises(RequestError, match="the input of a batch"):
        await server.files.delete("", "file-in")
    disk.may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    [record] = runner.list("")
    await idle(runner)
    assert record.status is BatchStatus.COMPLETED
    assert await server.files.delete("", "file-in")


async def test_cancel_of_a_client_that_disconnects_is_done(server, tmp_path, monkeypatch) -> None:
    server.num_answers = 5
    runner = BatchRunner(tmp_path / "batches", BatchConfig(), server.parts)
    record = numbered(1)
    await runner.add(record)
    await server.stopped.wait()
    disk = SlowDisk(runner, monkeypatch)
    task = asyncio.ensure_future(runner.cancel(record))
    await disk.writes.wait()
    task.cancel()
    disk.may_write.set()
    await idle(runner)
    assert record.status is BatchStatus.CANCELLED


async def test_undeletable_records_do_not_delay_batches(
    server, tmp_path, monkeypatch, caplog
) -> None:
    runner = BatchRunner(tmp_path / "batches", BatchConfig(max_kept=1), server.parts)
    disk = SlowDisk(runner, monkeypatch)
    disk.may_write.set()
    for number in range(4):
        await runner.add(numbered(number))
    await idle(runner)
    server.num_answers = len(server.asked)
    await asyncio.gather(*(runner.add(numbered(number)) for number in range(4, 8)))
    await runner.close()
    await server.parts.files.threads.close()
    assert sorted(disk.deleted) == [f"batch_{number:032x}" for number in range(3)]
    assert caplog.text.count("cannot delete the record of") == 3
    assert len(list(runner.list(""))) == 5
