"""Appends the results of a batch to its files, and knows by them, after a crash too, which lines
are done."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from fastovms.batches.batch_line import (
    NOT_JSON,
    LineAnswer,
    answer_line,
    number_of,
    result_id,
    result_start,
    unasked_line,
)
from fastovms.batches.line_usage import AnswerBody, AnswerUsage, BatchUsage, usage_of
from fastovms.system.disk_threads import DiskThreads


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    body: AnswerBody | None = None


class _Result(msgspec.Struct, frozen=True):
    id: str
    response: _Response | None = None


class _Addition(NamedTuple):
    """What is to be written of a line.

    Attributes:
        outcome: its answer, or the code that tells why it has none.
    """

    number: int
    custom_id: str
    outcome: LineAnswer | str


class ForeignResult(Exception):
    """Says that a file of results has a line that is none of this batch.

    Attributes:
        number: the line's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ResultPaths(NamedTuple):
    """Where results are written: those of answers, and those of errors, which may be one file."""

    output: Path
    errors: Path


class ResultLog:
    """The results of one batch. A line is done when it is in a file, whole; nothing else says so.

    Args:
        key: tells its results from those of others.
        last_line: the number of the last line of the input.
        threads: write the files.

    Attributes:
        num_completed, num_failed: the results so far.
        usage: the tokens of all answers.
    """

    def __init__(self, paths: ResultPaths, key: str, last_line: int, threads: DiskThreads) -> None:
        self._paths = paths
        self._key = key
        self._last_line = last_line
        self._threads = threads
        self._done = bytearray(last_line // 8 + 1)  # a bit a line
        self._files: dict[Path, int] = {}
        self._in_use = threading.Lock()  # by who reads or writes the files, in a thread
        self._waiting: dict[Path, list[_Addition]] = {path: [] for path in paths}
        self._writing: asyncio.Future[None] | None = None
        self.num_completed = 0
        self.num_failed = 0
        self.usage = BatchUsage()

    @property
    def num_done(self) -> int:
        return self.num_completed + self.num_failed

    def is_done(self, number: int) -> bool:
        return bool(self._done[number >> 3] & 1 << (number & 7))

    # What is there

    def open(self, *, keeps_foreign: bool = False) -> None:
        """Opens the files, and reads what a process before has left there. A line that is cut, or
        is no result of this batch, ends what counts: it is cut off with all behind it. It blocks.

        Args:
            keeps_foreign: whether to cut nothing off but the beginning of a result.

        Raises:
            OSError: a file cannot be had.
            ForeignResult: there is something that is to be kept. The files are as they were.
        """
        with self._in_use:
            for path in dict.fromkeys(self._paths):
                self._open(path, keeps_foreign)

    def _open(self, path: Path, keeps_foreign: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = self._files[path] = os.open(path, flags, 0o600)
        end = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") or not self._take(line):
                    if keeps_foreign and not self._is_cut(line):
                        raise ForeignResult(number)
                    break
                end += len(line)
        os.truncate(descriptor, end)

    def _is_cut(self, line: bytes) -> bool:
        """Whether a process before has begun this result, and has not come to its end."""
        start = result_start(self._key)
        return not line.endswith(b"\n") and line[: len(start)] == start[: len(line)]

    def _take(self, line: bytes) -> bool:
        """Notes a result of a process before, and returns whether it is one."""
        try:
            result = msgspec.json.decode(line, type=_Result)
        except NOT_JSON:
            return False
        number = number_of(result.id, self._key)
        if number is None or not 0 < number <= self._last_line or self.is_done(number):
            return False
        response = result.response
        is_success = response is not None and 200 <= response.status_code < 300
        body = None if response is None else response.body
        self._note(number, is_success=is_success)
        if is_success and body is not None:
            self.usage.add(body.usage)
        return True

    # What is added

    def add(self, number: int, custom_id: str, answer: LineAnswer) -> None:
        """Adds what was answered to a line. It is in the file, and its tokens are counted, when
        `flush` has returned."""
        path = self._paths.output if answer.is_success else self._paths.errors
        self._waiting[path].append(_Addition(number, custom_id, answer))
        self._note(number, is_success=answer.is_success)

    def add_unasked(self, number: int, custom_id: str, code: str) -> None:
        """Adds that a line was never asked, and why."""
        self._waiting[self._paths.errors].append(_Addition(number, custom_id, code))
        self._note(number, is_success=False)

    async def flush(self) -> None:
        """Returns when all that was added is in the files.

        Raises:
            OSError: it cannot be written: the log is of no use any more.
        """
        while self._writing is not None or any(self._waiting.values()):
            if self._writing is None:
                self._writing = asyncio.ensure_future(self._write_waiting())
            await asyncio.shield(self._writing)

    async def _write_waiting(self) -> None:
        waiting = {path: added for path, added in self._waiting.items() if added}
        self._waiting = {path: [] for path in self._paths}
        for usage in await self._threads.run(self._write, waiting):
            self.usage.add(usage)
        self._writing = None  # after an error it stays, for all to raise that

    def _write(self, waiting: Mapping[Path, Sequence[_Addition]]) -> list[AnswerUsage | None]:
        """Writes results, and returns the usages of answers. Long answers take long."""
        with self._in_use:
            for path, added in waiting.items():
                rest = memoryview(b"".join(map(self._line, added)))
                while rest:
                    rest = rest[os.write(self._files[path], rest) :]
        answers = [one.outcome for added in waiting.values() for one in added]
        return [
            usage_of(answer.body)
            for answer in answers
            if isinstance(answer, LineAnswer) and answer.is_success
        ]

    def _line(self, added: _Addition) -> bytes:
        id = result_id(self._key, added.number)
        if isinstance(added.outcome, LineAnswer):
            return answer_line(id, added.custom_id, added.outcome)
        return unasked_line(id, added.custom_id, added.outcome)

    def sync(self) -> None:
        """Returns when the files are on the disk. It blocks. Raises OSError."""
        with self._in_use:
            for descriptor in self._files.values():
                os.fsync(descriptor)

    async def close(self) -> None:
        """Closes the files once no thread is at work on them: a descriptor that was closed too
        early may be another file's. What was added is in them then, unless the disk has failed.
        Who is cancelled here does not stop it."""
        await asyncio.shield(self._flush_and_close())

    async def _flush_and_close(self) -> None:
        try:
            with suppress(OSError):
                await self.flush()
        finally:
            await self._threads.run(self._close_files)

    def _close_files(self) -> None:
        with self._in_use:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()

    def _note(self, number: int, *, is_success: bool) -> None:
        self._done[number >> 3] |= 1 << (number & 7)
        if is_success:
            self.num_completed += 1
        else:
            self.num_failed += 1
