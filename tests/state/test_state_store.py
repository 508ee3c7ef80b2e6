"""Tests of `fastovms/state/state_store.py`."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading

import pytest
from prometheus_client import CollectorRegistry

from fastovms.errors import StateFailed
from fastovms.state.database import StateBounds
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateCollector, StateStore, StateWorker
from fastovms.state.store import StoredItem
from tests.state.conftest import UNBOUNDED


async def test_state_metrics_are_exported(make_sqlite, tmp_path):
    database = make_sqlite(path=str(tmp_path / "state.db"))
    store = StateStore(database)
    registry = CollectorRegistry()
    registry.register(StateCollector(store.stats, lambda: 3))

    def values() -> list[float | None]:
        names = (
            *("state_objects", "state_bytes", "state_failures_total", "background_responses"),
            "state_on_disk",
        )
        return [registry.get_sample_value(f"fastovms_{name}") for name in names]

    assert values() == [0, 0, 0, 3, 1]
    await store.run(Operations.add_conversation, "t", "c", b"{}", [StoredItem("i", b"text")])
    assert values() == [1, database.totals.num_bytes, 0, 3, 1]
    connection: sqlite3.Connection = database._connection
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StateFailed):
        await store.run(Operations.delete_conversation, "t", "c")
    assert values()[0:3:2] == [1, 1]
    await store.close()


class Gate:
    """An operation that lasts until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, state: object) -> None:
        self.entered.set()
        self.opened.wait()


async def blocked(worker: StateWorker) -> tuple[Gate, asyncio.Future[None]]:
    """Has the worker run an operation that lasts. Returns its gate and its result."""
    gate = Gate()
    result = asyncio.ensure_future(worker.run(gate))
    await asyncio.to_thread(gate.entered.wait)
    return gate, result


def add(id: str):
    return lambda state: state.add_conversation("t", id, b"{}", [])


def find(id: str):
    return lambda state: state.find_conversation("t", id)


@pytest.fixture
async def start(make_sqlite):
    workers = []

    def make(bounds: StateBounds = UNBOUNDED, *, max_queued: int = 100, timeout: float = 30.0):
        database = make_sqlite(bounds)
        worker = StateWorker([database], max_queued=max_queued, timeout=timeout)
        workers.append(worker)
        return worker, database

    yield make
    for worker in workers:
        await worker.close()


@pytest.fixture
async def skip_time(monkeypatch):
    """Returns what has the loop's clock go on by so many seconds within one turn of it."""
    loop = asyncio.get_running_loop()
    read_clock, skipped = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: read_clock() + skipped)

    def skip(seconds: float) -> None:
        nonlocal skipped
        skipped += seconds

    return skip


async def test_error_of_an_operation_reaches_its_caller(start):
    worker, _ = start()
    await worker.run(add("a"))
    with pytest.raises(StateFailed, match="already"):
        await worker.run(add("a"))
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda state: 1 // 0)
    assert await worker.run(find("a")) == b"{}"


async def test_waiting_operations_share_a_commit(start, monkeypatch):
    worker, database = start()
    batches = []
    transact = database.transact

    def count(operations):
        batches.append(len(operations))
        return transact(operations)

    monkeypatch.setattr(database, "transact", count)
    gate, first = await blocked(worker)
    waiting = [asyncio.ensure_future(worker.run(add(str(number)))) for number in range(50)]
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(first, *waiting)
    assert batches == [1, 50]


async def test_operation_with_a_failed_commit_fails(start, monkeypatch):
    worker, database = start()

    class Connection:
        """Fails to commit."""

        def __init__(self, connection):
            self.connection = connection

        def execute(self, sql, *values):
            return self.connection.execute("nonsense" if sql == "COMMIT" else sql, *values)

        def __getattr__(self, name):
            return getattr(self.connection, name)

    await worker.run(add("a"))
    with monkeypatch.context() as failing:
        failing.setattr(database, "_connection", Connection(database._connection))
        with pytest.raises(StateFailed):
            await worker.run(add("b"))
    assert [await worker.run(find(id)) for id in "ab"] == [b"{}", None]


async def test_unexpected_failure_fails_its_own_operation_only(start, monkeypatch):
    """The others of its batch, and those after it, are done."""
    worker, database = start()
    attempt = database._run

    def fail_at(operation):
        if operation is bad:
            raise KeyError("unexpected")
        return attempt(operation)

    bad = find("x")
    monkeypatch.setattr(database, "_run", fail_at)
    gate, first = await blocked(worker)
    batch = [asyncio.ensure_future(worker.run(some)) for some in (add("a"), bad, add("b"))]
    await asyncio.sleep(0)
    gate.opened.set()
    assert await asyncio.gather(first, *batch[::2]) == [None] * 3
    with pytest.raises(StateFailed, match="KeyError"):
        await batch[1]
    assert worker.num_failures == 1
    assert await worker.run(find("b")) == b"{}"


@pytest.mark.parametrize("error", [RuntimeError, StateFailed])
async def test_failed_housekeeping_is_logged_and_work_goes_on(start, monkeypatch, caplog, error):
    worker, database = start()

    def fail():
        raise error("no eviction today")

    monkeypatch.setattr(database, "do_maintenance", fail)
    await worker.run(add("a"))
    assert await worker.run(find("a")) == b"{}"
    assert "no eviction today" in caplog.text


async def test_full_queue_makes_operations_wait(start):
    worker, _ = start(max_queued=2)
    gate, first = await blocked(worker)
    others = [asyncio.ensure_future(worker.run(add(str(number)))) for number in range(10)]
    await asyncio.sleep(0.01)
    assert len(worker._jobs) == 1
    gate.opened.set()
    await asyncio.gather(first, *others)


async def test_operations_fail_at_once_while_the_disk_hangs(start, skip_time):
    """One operation has waited in vain; others do not, until the disk has answered."""
    worker, _ = start()
    gate, waiting = await blocked(worker)
    skip_time(60.0)
    with pytest.raises(StateFailed, match="was not stored within"):
        await waiting
    for _ in range(10):
        with pytest.raises(StateFailed, match="does not respond"):
            await worker.run(find("a"))
    gate.opened.set()
    while True:
        try:
            assert await worker.run(find("a")) is None
            break
        except StateFailed:
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_too_late", [False, True])
async def test_result_at_its_timeout_leaves_the_worker_usable(
    start, monkeypatch, skip_time, is_too_late
):
    """One long turn of the loop ends behind both. Which one comes first is the loop's business."""
    worker, _ = start(timeout=30.0)
    loop, results = asyncio.get_running_loop(), queue.SimpleQueue()
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_report", lambda *values: results.put(values) or True)
        waiting = asyncio.ensure_future(worker.run(add("a")))
        result = await asyncio.to_thread(results.get)
    loop.call_later(31.0 if is_too_late else 0.0, worker._settle, *result)
    skip_time(60.0)
    if is_too_late:
        with pytest.raises(StateFailed, match="was not stored within"):
            await waiting
    else:
        assert await waiting is None
    assert await worker.run(find("a")) == b"{}"


async def test_cancelled_operation_is_executed_without_answer(start):
    worker, _ = start()
    gate, first = await blocked(worker)
    cancelled = asyncio.ensure_future(worker.run(add("a")))
    await asyncio.sleep(0)
    cancelled.cancel()
    gate.opened.set()
    await first
    assert await worker.run(find("a")) == b"{}"


async def test_close_finishes_queued_operations(start):
    worker, _ = start()
    gate, first = await blocked(worker)
    last = asyncio.ensure_future(worker.run(add("a")))
    closing = asyncio.ensure_future(worker.close())
    await asyncio.sleep(0.01)
    with pytest.raises(StateFailed, match="closed"):
        await worker.run(find("a"))
    gate.opened.set()
    await asyncio.gather(first, last, closing)


async def test_close_does_not_wait_for_a_disk_that_hangs(start):
    worker, _ = start(timeout=0.01)
    gate = Gate()
    with pytest.raises(StateFailed):
        await worker.run(gate)
    await worker.close()
    assert worker._threads[0].is_alive()
    gate.opened.set()
    worker._threads[0].join()


def test_thread_ends_after_its_loop_has_ended(make_sqlite):
    async def leave() -> tuple[StateWorker, Gate]:
        worker = StateWorker([make_sqlite()], max_queued=1, timeout=30.0)
        gate, result = await blocked(worker)
        result.cancel()
        return worker, gate

    worker, gate = asyncio.run(leave())
    gate.opened.set()
    worker._threads[0].join(60)
    assert not worker._threads[0].is_alive()


async def test_bounds_are_kept_while_the_store_is_busy_and_idle(start, clock):
    worker, database = start(UNBOUNDED._replace(max_count=10, max_age=0.5))
    await asyncio.gather(*(worker.run(add(str(number))) for number in range(200)))
    assert await worker.run(find("0")) is None
    assert await worker.run(find("199")) == b"{}"
    clock.now += 0.5
    for _ in range(20):  # each is answered first, and then evicts one
        await worker.run(find("0"))
        clock.now += 0.1
    await worker.close()
    assert database.totals.num_objects == 0


# The store runs each operation on the threads that it belongs to.


@pytest.mark.parametrize("reads", [True, False])
async def test_reading_and_writing_operations_have_separate_threads(make_sqlite, tmp_path, reads):
    path = str(tmp_path / "state.db")
    used = []

    def noting(name: str):
        database = make_sqlite(path=path)
        transact = database.transact
        database.transact = lambda operations: used.append(name) or transact(operations)
        return database

    store = StateStore(noting("writer"), readers=[noting("reader")])
    operation = Operations.find_conversation if reads else Operations.delete_conversation
    await store.run(operation, "t", "c")
    assert used == ["reader" if reads else "writer"]
    assert store.trouble() == ""
    await store.close()
