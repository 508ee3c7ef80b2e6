"""Runs the lines of one batch that are not done, as many at a time as may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from fastovms.batches.batch_line import AskLater, BatchLine, LineAnswer, parse_line, read_lines
from fastovms.batches.result_log import ResultLog
from fastovms.batches.slots import LineSlots
from fastovms.system.disk_threads import DiskThreads

_LINES_READ: Final = 64
_BYTES_READ: Final = 1024 * 1024

Ask = Callable[[BatchLine], Awaitable[LineAnswer | AskLater]]
"""Returns the answer to a line."""


class _Slot:
    """The slot of one line, which others have while the line waits to ask again."""

    def __init__(self, slots: LineSlots, size: int, owner: str) -> None:
        self._slots = slots
        self._size = size
        self._owner = owner
        self._is_held = False

    async def take(self) -> None:
        await self._slots.acquire(self._size, self._owner)
        self._is_held = True

    def give_back(self) -> None:
        if self._is_held:
            self._is_held = False
            self._slots.release(self._size, self._owner)


class LineRunner:
    """Runs lines, and appends their results to a log.

    Args:
        path: the input, which was checked.
        threads: read it.
        on_done: is called after each line.
        owner: the key or address in whose share of the slots the lines run.
    """

    def __init__(
        self,
        path: Path,
        log: ResultLog,
        ask: Ask,
        slots: LineSlots,
        threads: DiskThreads,
        on_done: Callable[[], None] = lambda: None,
        *,
        owner: str = "",
    ) -> None:
        self._owner = owner
        self._path = path
        self._log = log
        self._ask = ask
        self._slots = slots
        self._threads = threads
        self._on_done = on_done
        self._num_waiting = 0
        self._nobody_waits = asyncio.Event()
        self._nobody_waits.set()

    async def run(self) -> None:
        """Returns when all lines are done. While some wait to ask again, none begin, so that
        few do.

        Raises:
            OSError: a file cannot be read or written.
        """
        async with aclosing(self._undone()) as undone, asyncio.TaskGroup() as running:
            async for number, line, size in undone:
                slot = _Slot(self._slots, size, self._owner)
                await slot.take()
                while self._num_waiting:
                    slot.give_back()
                    await self._nobody_waits.wait()
                    await slot.take()
                self._begin(running, number, line, slot)

    def _begin(self, running: asyncio.TaskGroup, number: int, line: BatchLine, slot: _Slot) -> None:
        """Has a line run in the slot that it has got. It gives that back at its end, which may come
        before its first step."""
        work = self._run(number, line, slot)
        try:
            task = running.create_task(work)
        except RuntimeError:  # another line has failed, and ends all
            work.close()
            slot.give_back()
            raise
        task.add_done_callback(lambda task: slot.give_back())

    async def _run(self, number: int, line: BatchLine, slot: _Slot) -> None:
        while isinstance(answer := await self._ask(line), AskLater):
            slot.give_back()
            await self._wait(answer.seconds)
            await slot.take()
        self._log.add(number, line.custom_id, answer)
        await self._log.flush()
        self._on_done()

    async def _wait(self, seconds: float) -> None:
        self._num_waiting += 1
        self._nobody_waits.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._nobody_waits.set()

    async def skip_rest(self, code: str) -> None:
        """Notes of every line that is not done why it never will be. Raises as `run` does."""
        async with aclosing(self._undone()) as undone:
            async for number, line, _ in undone:
                self._log.add_unasked(number, line.custom_id, code)
                if number % _LINES_READ == 0:
                    await self._log.flush()
        await self._log.flush()

    async def _undone(self) -> AsyncGenerator[tuple[int, BatchLine, int]]:
        """Yields the lines that are not done, with their numbers and sizes."""
        lines = read_lines(self._path)
        undone = (found for found in lines if not self._log.is_done(found[0]))
        try:
            while block := await self._threads.run(_read_block, undone):
                for number, line, size in block:
                    yield number, line, size
        finally:
            with suppress(ValueError):  # a thread still reads: who cancels does not wait for it
                lines.close()


def _read_block(lines: Iterator[tuple[int, bytes]]) -> list[tuple[int, BatchLine, int]]:
    """Returns the next lines, of at most about a MiB or one line."""
    block, num_bytes = [], 0
    for number, line in islice(lines, _LINES_READ):
        block.append((number, parse_line(line), len(line)))
        num_bytes += len(line)
        if num_bytes > _BYTES_READ:
            break
    return block
