"""Clients take turns at a thread, and nobody's calls fill its queue."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from fastovms.api.wire.bodies.fair_thread import FairThread
from fastovms.errors import BackendUnavailable, Overloaded


class Gate:
    """A thread whose calls wait until they are let go, and are noted as they begin."""

    def __init__(self) -> None:
        self.thread: FairThread[str] = FairThread("things", per_client=3, total=4)
        self.begun: list[str] = []
        self.entered = threading.Event()
        self.opened = threading.Event()

    def call(self, name: str) -> Callable[[], str]:
        def wait() -> str:
            self.begun.append(name)
            self.entered.set()
            assert self.opened.wait(10)
            return name

        return wait

    async def send(self, *names: str) -> list[asyncio.Task[str]]:
        """Runs calls; the first letter names the client."""
        tasks = [asyncio.create_task(self.thread.run(name[0], self.call(name))) for name in names]
        await asyncio.sleep(0)
        return tasks


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()
    gate.thread.close()


async def test_clients_take_turns(gate: Gate) -> None:
    tasks = await gate.send("a1", "a2", "a3", "b1")
    gate.opened.set()
    assert await asyncio.gather(*tasks) == ["a1", "a2", "a3", "b1"]
    assert gate.begun == ["a1", "a2", "b1", "a3"]


async def test_what_is_raised_is_raised(gate: Gate) -> None:
    def fail() -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await gate.thread.run("a", fail)
    gate.opened.set()
    assert await gate.thread.run("a", gate.call("a1")) == "a1"


async def test_a_client_has_a_limit_and_makes_room_for_others(gate: Gate) -> None:
    tasks = await gate.send("a1", "a2", "a3", "a4", "a5", "b1", "c1")
    with pytest.raises(Overloaded, match="3 things of this client are waiting already"):
        await tasks[4]
    with pytest.raises(Overloaded, match="too many things of this client are waiting"):
        await tasks[3]  # which c1 has displaced
    gate.opened.set()
    assert await asyncio.gather(*tasks[:3], *tasks[5:]) == ["a1", "a2", "a3", "b1", "c1"]


async def test_who_leaves_does_not_wait_and_does_not_bring_others_forward(gate: Gate) -> None:
    first, second, third = await gate.send("a1", "a2", "a3")
    assert await asyncio.to_thread(gate.entered.wait, 10)
    first.cancel()
    second.cancel()
    await asyncio.wait((first, second))
    await asyncio.sleep(0.01)
    assert gate.begun == ["a1"]  # which the thread is still at
    gate.opened.set()
    assert await third == "a3"
    assert gate.begun == ["a1", "a3"]


async def test_the_end(gate: Gate) -> None:
    first, second = await gate.send("a1", "a2")
    gate.thread.close()
    with pytest.raises(BackendUnavailable):
        await second
    with pytest.raises(BackendUnavailable):
        await gate.thread.run("a", gate.call("a3"))
    gate.opened.set()
    assert await first == "a1"
    assert gate.begun == ["a1"]


async def test_what_a_refused_call_was_about_is_let_go_at_once(gate: Gate) -> None:
    """Not only by the next collection of garbage: bodies are large."""

    class Body:
        def decode(self) -> str:
            raise ValueError("no body")

    body = Body()
    kept = weakref.ref(body)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no body") as caught:
            await gate.thread.run("a", body.decode)
        del body, caught
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()
