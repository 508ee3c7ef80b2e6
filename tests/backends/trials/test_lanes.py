"""Grammars that take long wait where only others of their kind do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from fastovms.backends.trials.lanes import TrialLanes
from fastovms.backends.trials.trial import TakesLonger
from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.grammar.grammar_faults import UnusableGrammar
from fastovms.params import Grammar, GrammarKind


def grammar(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


class FakeLane:
    """Takes at once what is short. What begins with `slow` needs another lane, and waits in the
    last one until it may go on; `bad` is refused, `panic` raises what is no Exception. It is made
    ready only when there are no `faults` left."""

    def __init__(self) -> None:
        self.num_deaths = 0
        self.seen: list[str] = []
        self.may_go_on = threading.Event()
        self.is_warm = threading.Event()
        self.is_closed = threading.Event()
        self.faults: list[Exception] = []

    def warm_up(self) -> None:
        if self.faults:
            raise self.faults.pop()
        self.is_warm.set()

    def attempt(self, grammar: Grammar, *, is_last: bool) -> str:
        self.seen.append(grammar.source)
        if grammar.source.startswith("slow"):
            if not is_last:
                raise TakesLonger
            self.may_go_on.wait()
        if grammar.source == "bad":
            raise UnusableGrammar(grammar, "it is bad")
        if grammar.source == "panic":
            raise BaseException("panicked")
        return grammar.source.upper()

    def kill(self) -> None:
        self.may_go_on.set()

    def close(self) -> None:
        self.is_closed.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads make it true
            await asyncio.sleep(0.001)


@contextmanager
def two_lanes(**options: float) -> Iterator[tuple[TrialLanes[str], FakeLane, FakeLane]]:
    quick, slow = FakeLane(), FakeLane()
    lanes = TrialLanes([quick, slow], **options)
    try:
        yield lanes, quick, slow
    finally:
        lanes.close()
        if quick.is_warm.is_set():
            assert quick.is_closed.wait(10)


@asynccontextmanager
async def blocked(
    lanes: TrialLanes[str], slow: FakeLane, num: int, client: str = "hostile"
) -> AsyncIterator[list[asyncio.Task[str]]]:
    """So many slow grammars of a client's, of which one is in the last lane."""
    tasks = [asyncio.create_task(lanes.run(grammar(f"slow{i}"), client)) for i in range(num)]
    await until(lambda: bool(slow.seen))
    try:
        yield tasks
    finally:
        slow.may_go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_first_lane_is_warm_from_the_start_and_the_others_when_they_are_needed() -> None:
    with two_lanes() as (lanes, quick, slow):
        lanes.start()
        assert await asyncio.to_thread(quick.is_warm.wait, 10)
        assert await lanes.run(grammar("a"), "x") == "A"
        assert not slow.is_warm.is_set()


@pytest.mark.parametrize("client", ["hostile", "another"])
async def test_an_ordinary_grammar_does_not_wait_for_slow_ones(client: str) -> None:
    with two_lanes() as (lanes, _, slow):
        async with blocked(lanes, slow, 5) as tasks:
            assert await lanes.run(grammar("a"), client) == "A"
            assert not any(task.done() for task in tasks)


async def test_slow_ones_of_another_client_come_after_one_at_most() -> None:
    with two_lanes() as (lanes, quick, slow):
        async with blocked(lanes, slow, 5):
            other = asyncio.create_task(lanes.run(grammar("slow!"), "another"))
            await until(lambda: "slow!" in quick.seen)
            await lanes.run(grammar("a"), "another")  # which comes after it in the first lane
            slow.may_go_on.set()
            assert await other == "SLOW!"
        assert slow.seen.index("slow!") <= 2


async def test_a_client_with_too_many_is_told_so() -> None:
    with two_lanes() as (lanes, _, slow):
        async with blocked(lanes, slow, 30) as tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=10)
            errors = [task.exception() for task in done]
            assert errors
            assert all(isinstance(error, Overloaded) for error in errors)
            assert all(str(error).startswith("response_format: ") for error in errors)
            assert lanes.stats.num_overloads >= len(errors)


async def test_waiting_has_an_end() -> None:
    with (
        two_lanes(max_seconds=0.05) as (lanes, _, _),
        pytest.raises(Overloaded, match=r"format: .*0\.05 s"),
    ):
        await lanes.run(grammar("slow"), "x")


async def test_a_refusal_and_a_panic_concern_only_their_grammar() -> None:
    with two_lanes() as (lanes, _, _):
        with pytest.raises(UnusableGrammar, match="it is bad"):
            await lanes.run(grammar("bad"), "x")
        with pytest.raises(UnusableGrammar, match="too much for the compiler") as error:
            await lanes.run(grammar("panic"), "x")
        assert error.value.param == "response_format"
        assert await lanes.run(grammar("a"), "x") == "A"


async def test_what_nobody_waits_for_is_not_tried() -> None:
    with two_lanes() as (lanes, quick, slow):
        async with blocked(lanes, slow, 2) as tasks:
            await until(lambda: lanes.stats.num_waiting == 1)
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            assert lanes.stats.num_waiting == 0
        assert quick.seen == ["slow0", "slow1"]
        assert slow.seen == ["slow0"]


async def test_a_lane_that_fails_is_started_again() -> None:
    with two_lanes() as (lanes, quick, _):
        quick.faults = [OSError("no more processes"), ZeroDivisionError()]
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="cannot be compiled now"):
                await lanes.run(grammar("a"), "x")
        assert await lanes.run(grammar("a"), "x") == "A"


async def test_closing_ends_what_waits() -> None:
    with two_lanes() as (lanes, _, slow):
        async with blocked(lanes, slow, 3) as tasks:
            await until(lambda: lanes.stats.num_waiting == 2)
            lanes.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[0] == "SLOW0"
        assert all(isinstance(result, BackendUnavailable) for result in results[1:])
        with pytest.raises(BackendUnavailable, match="shutting down"):
            await lanes.run(grammar("a"), "x")
