"""Takes one batch from where it stands to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from fastovms.batches.batch_faults import BatchFaults, cause_of_end, too_many_ends
from fastovms.batches.batch_line import CANCELLED, EXPIRED
from fastovms.batches.batch_record import BatchRecord, BatchStatus
from fastovms.batches.input_check import CheckedInput, InputRules
from fastovms.batches.input_checker import InputChecker
from fastovms.batches.line_caller import LineCaller
from fastovms.batches.line_runner import LineRunner
from fastovms.batches.result_log import ResultLog, ResultPaths
from fastovms.batches.slots import LineSlots
from fastovms.files.file_record import BATCH_OUTPUT, FileRecord
from fastovms.files.file_store import FileStore

logger = logging.getLogger(__name__)

MAX_IDLE_STARTS: Final = 5
"""After how many ends of the process in a row without any line done a batch has failed: it may be
what ends it."""

_CODES: Final = {BatchStatus.EXPIRED: EXPIRED, BatchStatus.CANCELLED: CANCELLED}


@dataclass(frozen=True, slots=True)
class BatchParts:
    """What all batches run with.

    Attributes:
        checker: looks at their inputs.
        rules: returns what the lines must be of a batch with an endpoint.
        clock: tells the Unix time.
    """

    files: FileStore
    caller: LineCaller
    slots: LineSlots
    checker: InputChecker
    rules: Callable[[str], InputRules]
    clock: Callable[[], float]


class BatchRun:
    """A batch that has not ended. What is done of it is on the disk; the rest is done again.

    Args:
        save: keeps a record; it raises OSError. Who is cancelled meanwhile does not stop it.
        work: the directory of results that are not complete.

    Attributes:
        record: is kept up to date.
    """

    def __init__(
        self,
        record: BatchRecord,
        parts: BatchParts,
        save: Callable[[BatchRecord], Awaitable[None]],
        work: Path,
    ) -> None:
        self.record = record
        self._parts = parts
        self._save = save
        self._work = work
        self._checking: asyncio.Task[CheckedInput] | None = None
        self._lines: asyncio.Task[None] | None = None
        self._log: ResultLog | None = None
        self._has_started = False
        self._faults = BatchFaults(record, parts.files)

    async def drive(self) -> None:
        """Returns when the batch has ended. Where a disk fails, it tries again later; any other
        fault, or an input that is gone, ends the batch with what is done by then."""
        while not self.record.has_ended:
            try:
                await self._go_on()
            except Exception as error:
                if self._faults.is_passing(error):
                    logger.error("%s is held up: %s", self.record.id, error)
                    await self._faults.rest()
                else:
                    await self._give_up(error)

    async def _give_up(self, error: Exception) -> None:
        """Has the batch end, with files of what is done unless it is these that fail."""
        record, now = self.record, self._parts.clock()
        self._faults.blame(error)
        if record.status is not BatchStatus.FINALIZING:
            record.enter(BatchStatus.FINALIZING, now)
            return
        record.enter(record.outcome, now)
        try:
            await self._save(record)
        except OSError as fault:
            logger.error("the end of %s cannot be kept: %s", record.id, fault)

    async def cancel(self) -> BatchRecord:
        """Ends the batch with what is done by then. The check of its input, or its lines, stop at
        once. Returns the record as it is when that is kept.

        Raises:
            OSError: that cannot be kept: another process, if one follows now, would go on.
        """
        record = self.record
        if record.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            record.enter(BatchStatus.CANCELLING, self._parts.clock())
            record.outcome = BatchStatus.CANCELLED
            self._faults.end_rest()
        for task in (self._checking, self._lines):
            if task is not None:
                task.cancel()
        cancelled = msgspec.structs.replace(record)
        if record.status is BatchStatus.CANCELLING:
            await self._save(record)
        return cancelled

    async def _go_on(self) -> None:
        record = self.record
        if record.status is BatchStatus.VALIDATING:
            await self._validate()
        if record.status in (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING):
            await self._run_lines()
        if record.status is BatchStatus.FINALIZING:
            await self._finalize()

    # Validating

    async def _validate(self) -> None:
        record, parts = self.record, self._parts
        path = parts.files.path_of(record.input_file_id)
        rules = parts.rules(record.endpoint)
        checked = await self._check(parts.checker.check(path, rules, record.shared_by))
        record.model, record.total = checked.model, checked.num_requests
        record.num_lines, record.errors = checked.last_line, checked.errors
        if record.status is not BatchStatus.VALIDATING:
            await self._save(record)
            return
        if checked.errors:
            await self._end(BatchStatus.FAILED)
            logger.info("%s has failed: %s", record.id, checked.errors[0].message)
            return
        record.enter(BatchStatus.IN_PROGRESS, parts.clock())
        await self._save(record)
        logger.info("%s: %d requests of %s", record.id, record.total, record.model)

    async def _check(self, check: Coroutine[None, None, CheckedInput]) -> CheckedInput:
        """Returns what the check finds: nothing, where `cancel` ends it."""
        self._checking = asyncio.ensure_future(check)
        try:
            await asyncio.wait([self._checking])
        finally:
            self._checking.cancel()
            await asyncio.wait([self._checking])
            checking, self._checking = self._checking, None
        return CheckedInput() if checking.cancelled() else checking.result()

    async def _end(self, status: BatchStatus) -> None:
        """Ends the batch, which clients see once that is kept. Raises OSError."""
        now = self._parts.clock()
        ended = msgspec.structs.replace(self.record)
        ended.enter(status, now)
        await self._save(ended)
        self.record.enter(status, now)

    # Running

    async def _run_lines(self) -> None:
        record, parts = self.record, self._parts
        threads = parts.files.threads
        log = ResultLog(self._paths, record.key, record.num_lines, threads)
        try:
            await threads.run(log.open)
            self._log = log
            self._count()
            if await self._may_start():
                await self._work_off(log)
            await log.flush()
            await threads.run(log.sync)
        finally:
            self._log = None
            await log.close()
        self._tell(log)
        record.enter(BatchStatus.FINALIZING, parts.clock())
        await self._save(record)

    async def _work_off(self, log: ResultLog) -> None:
        """Has all lines be done, or told why they are not. Raises what may pass."""
        record, parts = self.record, self._parts
        ask = partial(parts.caller.ask, tenant=record.tenant)
        path = parts.files.path_of(record.input_file_id)
        threads, owner = parts.files.threads, record.shared_by
        runner = LineRunner(path, log, ask, parts.slots, threads, self._count, owner=owner)
        try:
            await self._run_in_time(runner)
            was_checked = record.num_lines > 0 and not record.errors
            if was_checked and record.outcome in _CODES:
                await runner.skip_rest(_CODES[record.outcome])
        except Exception as error:
            if self._faults.is_passing(error):
                raise
            self._faults.blame(error)

    async def _may_start(self) -> bool:
        """Returns whether the batch may run, which it may not where it has ended one process after
        the other."""
        record, log = self.record, self._log
        assert log is not None
        if self._has_started:
            return True
        self._has_started = True
        is_idle = log.num_done == record.num_done
        record.num_idle_starts = record.num_idle_starts + 1 if is_idle else 1
        record.num_done = log.num_done
        if record.num_idle_starts > MAX_IDLE_STARTS:
            self._faults.end_with(too_many_ends(MAX_IDLE_STARTS))
            logger.error("%s cannot go on: %s", record.id, record.errors[-1].message)
            return False
        await self._save(record)
        return True

    async def _run_in_time(self, runner: LineRunner) -> None:
        """Runs lines until all are done, or the batch is cancelled, or its time is over."""
        record = self.record
        if record.status is BatchStatus.CANCELLING:
            return
        self._lines = asyncio.ensure_future(runner.run())
        try:
            seconds = max(0.0, record.expires_at - self._parts.clock())
            await asyncio.wait([self._lines], timeout=seconds)
            if not self._lines.done():
                record.outcome = BatchStatus.EXPIRED
        finally:
            self._lines.cancel()
            await asyncio.wait([self._lines])
            lines, self._lines = self._lines, None
        if not lines.cancelled() and (error := lines.exception()) is not None:
            raise cause_of_end(error)

    def _count(self) -> None:
        """Has the record tell what is done."""
        if self._log is not None:
            self._tell(self._log)

    def _tell(self, log: ResultLog) -> None:
        self.record.completed, self.record.failed = log.num_completed, log.num_failed
        self.record.usage = log.usage

    # Finalizing

    @property
    def _paths(self) -> ResultPaths:
        id, work = self.record.id, self._work
        return ResultPaths(work / f"{id}.output", work / f"{id}.errors")

    async def _finalize(self) -> None:
        """Makes files of the results. What a process before has done of it stands."""
        record = self.record
        paths = self._paths
        record.output_file_id = await self._publish(paths.output, record.output_id, "output")
        record.error_file_id = await self._publish(paths.errors, record.error_id, "errors")
        await self._end(record.outcome)
        logger.info(
            "%s is %s: %d completed, %d failed",
            record.id,
            record.status,
            record.completed,
            record.failed,
        )

    async def _publish(self, path: Path, id: str, name: str) -> str | None:
        record, files = self.record, self._parts.files
        if files.find(record.tenant, id) is not None:
            return id
        size = await files.threads.run(_size_or_none, path)
        if size is None:
            return None
        now, age = int(self._parts.clock()), record.output_age
        file = FileRecord(
            id=id,
            tenant=record.tenant,
            name=f"{record.id}_{name}.jsonl",
            purpose=BATCH_OUTPUT,
            size=size,
            created_at=now,
            expires_at=None if age is None else now + age,
            owner=record.owner,
        )
        await files.add(path, file)
        return id


def _size_or_none(path: Path) -> int | None:
    """Returns how large a file is; None = it has nothing, and is deleted. Raises OSError."""
    size = path.stat().st_size if path.exists() else 0
    if not size:
        path.unlink(missing_ok=True)
    return size or None
