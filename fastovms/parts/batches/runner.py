"""Runs batches: each line is a request at the lowest priority."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict, deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from fastovms.errors import InvalidField, NotFound, Overloaded, RequestError
from fastovms.fair_queue import Shares
from fastovms.http.messages import Budget, Caller, Headers, Request, Response
from fastovms.http.routing import Match, Router
from fastovms.params import LOWEST_PRIORITY
from fastovms.parts.batches.input import CheckedInput, InputChecker, InputRules, LineSlots
from fastovms.parts.batches.records import (
    CANCELLED,
    EXPIRED,
    BatchError,
    BatchFaults,
    BatchLine,
    BatchRecord,
    BatchStatus,
    LineAnswer,
    ResultLog,
    ResultPaths,
    RetryLater,
    cause_of_end,
    parse_line,
    read_lines,
)
from fastovms.parts.batches.store import BATCH_OUTPUT, FileRecord, FileStore, Records
from fastovms.server_config import BatchConfig
from fastovms.system.disk import private_directory
from fastovms.system.threads import DiskThreads, run_to_end

logger = logging.getLogger(__name__)


_SENDER: Final = "batches:0"
"""The client address of batches without a key, which share the limits of one client."""

_LATER: Final = (429, 503)
_USUAL_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
_JSON: Final = Headers([("content-type", "application/json")])


@dataclass(frozen=True, slots=True)
class LineCaller:
    """Calls the server's handlers for batch lines.

    Attributes:
        router: finds the handlers by path.
        new_id: returns a new request id.
        refuse: returns the error response for a request, in the format of its path's API.
        has_failed: returns whether an engine has failed permanently. The process then ends soon,
            and the next process runs the lines.
        find_budget: returns the rate limits of a tenant's API key; None = no limits.
    """

    router: Router
    new_id: Callable[[], str]
    refuse: Callable[[RequestError, Request], Response]
    has_failed: Callable[[], bool] = lambda: False
    find_budget: Callable[[str], Budget | None] = lambda tenant: None

    async def ask(self, line: BatchLine, tenant: str) -> LineAnswer | RetryLater:
        """Returns the answer to a line, or `RetryLater` if the server is overloaded, the model is
        not available, or an engine has failed."""
        request = self._request(line, tenant)
        response = await self._answer(request, line)
        is_lost = response.status == 500 and self.has_failed()
        if response.status in _LATER or is_lost:
            return RetryLater(_delay(response))
        return LineAnswer(response.status, request.id, bytes(response.body) or b"null")

    def _request(self, line: BatchLine, tenant: str) -> Request:
        id = self.new_id()
        request = Request("POST", line.url, "", _JSON, line.body, client=_SENDER, id=id)
        budget = self.find_budget(tenant)
        request.caller = Caller(tenant=tenant, priority=LOWEST_PRIORITY, budget=budget)
        request.received_at = asyncio.get_running_loop().time()
        return request

    async def _answer(self, request: Request, line: BatchLine) -> Response:
        if line.forbidden is not None:
            message = f"{line.forbidden} must not be true in a batch"
            return self.refuse(InvalidField(message, param=line.forbidden), request)
        found = self.router.match("POST", request.raw_path)
        if not isinstance(found, Match):
            return self.refuse(NotFound(f"no such path: {request.path}", param="url"), request)
        handler, request.route, request.path_params = found
        outcome = handler(request)
        response = await outcome if inspect.isawaitable(outcome) else outcome
        assert response is not None, "only streamed answers have no response"
        return response


def _delay(response: Response) -> float:
    """Returns the seconds to wait before a retry."""
    for name, value in response.headers:
        if name == "Retry-After" and value.isdigit():
            return min(float(value), _MAX_DELAY)
    return _USUAL_DELAY


_LINES_READ: Final = 64
_BYTES_READ: Final = 1024 * 1024

Ask = Callable[[BatchLine], Awaitable[LineAnswer | RetryLater]]
"""Sends a line as a request and returns its answer."""


class _Slot:
    """The slot of one line; it is released while the line waits for a retry."""

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
    """Runs lines and appends their results to a log.

    Args:
        path: the input file, already checked.
        threads: the threads that read the input.
        on_done: called after each line.
        owner: the key or address whose slots the lines use.
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
        """Runs all lines and returns when all are done. While a line waits for a retry, no new
        lines are started. Raises an ExceptionGroup of the lines' errors, for example an OSError if
        the log cannot be written, and OSError if the input cannot be read."""
        async with aclosing(self._unfinished_lines()) as undone, asyncio.TaskGroup() as running:
            async for number, line, size in undone:
                slot = _Slot(self._slots, size, self._owner)
                await slot.take()
                while self._num_waiting:
                    slot.give_back()
                    await self._nobody_waits.wait()
                    await slot.take()
                self._begin(running, number, line, slot)

    def _begin(self, running: asyncio.TaskGroup, number: int, line: BatchLine, slot: _Slot) -> None:
        """Starts a line in its slot. The slot is released when the line ends, even if its task is
        cancelled before the first step."""
        work = self._run(number, line, slot)
        try:
            task = running.create_task(work)
        except RuntimeError:  # the group is closing, because another line has failed
            work.close()
            slot.give_back()
            raise
        task.add_done_callback(lambda task: slot.give_back())

    async def _run(self, number: int, line: BatchLine, slot: _Slot) -> None:
        while isinstance(answer := await self._ask(line), RetryLater):
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
        """Writes a result with the error code for every remaining line. Raises OSError if a file
        cannot be read or written."""
        async with aclosing(self._unfinished_lines()) as undone:
            async for number, line, _ in undone:
                self._log.add_skipped(number, line.custom_id, code)
                if number % _LINES_READ == 0:
                    await self._log.flush()
        await self._log.flush()

    async def _unfinished_lines(self) -> AsyncGenerator[tuple[int, BatchLine, int]]:
        """Yields the number, the request and the size in bytes of each line that is not done."""
        lines = read_lines(self._path)
        undone = (found for found in lines if not self._log.is_done(found[0]))
        try:
            while block := await self._threads.run(_read_block, undone):
                for number, line, size in block:
                    yield number, line, size
        finally:
            # ValueError if a thread is still reading; a cancellation does not wait for it.
            with suppress(ValueError):
                lines.close()


def _read_block(lines: Iterator[tuple[int, bytes]]) -> list[tuple[int, BatchLine, int]]:
    """Returns at most `_LINES_READ` further lines, of about `_BYTES_READ` together; an empty list
    at the end."""
    block, num_bytes = [], 0
    for number, line in islice(lines, _LINES_READ):
        block.append((number, parse_line(line), len(line)))
        num_bytes += len(line)
        if num_bytes > _BYTES_READ:
            break
    return block


MAX_IDLE_STARTS: Final = 5
"""A batch fails after this number of consecutive crashes of the process without a finished line,
since the batch may be the cause."""

_CODES: Final = {BatchStatus.EXPIRED: EXPIRED, BatchStatus.CANCELLED: CANCELLED}


@dataclass(frozen=True, slots=True)
class BatchParts:
    """Objects that all batches share.

    Attributes:
        checker: checks the input files.
        rules: returns the rules for the lines of a batch with an endpoint.
        clock: returns the Unix time.
    """

    files: FileStore
    caller: LineCaller
    slots: LineSlots
    checker: InputChecker
    rules: Callable[[str], InputRules]
    clock: Callable[[], float]


class BatchRun:
    """A batch that has not ended. Finished results are on disk; after a restart only the remaining
    lines run.

    Args:
        save: stores a record, even if the caller is cancelled; raises OSError.
        work: the directory for results of unfinished batches.

    Attributes:
        record: the current record.
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
        """Runs the batch to its end. Disk errors are retried. Any other error, or a missing input
        file, ends the batch with the results so far."""
        while not self.record.has_ended:
            try:
                await self._advance()
            except Exception as error:
                if self._faults.is_passing(error):
                    logger.error(
                        "batches: %s is interrupted, will retry: %s", self.record.id, error
                    )
                    await self._faults.rest()
                else:
                    await self._give_up(error)

    async def _give_up(self, error: Exception) -> None:
        """Ends the batch after an error, and keeps the results so far if they can be written."""
        record, now = self.record, self._parts.clock()
        self._faults.fail_with(error)
        if record.status is not BatchStatus.FINALIZING:
            record.enter(BatchStatus.FINALIZING, now)
            return
        record.enter(record.outcome, now)
        try:
            await self._save(record)
        except OSError as fault:
            logger.error("batches: cannot store the end of %s: %s", record.id, fault)

    async def cancel(self) -> BatchRecord:
        """Cancels the batch and keeps the results so far. Returns the record once the cancellation
        is stored. Raises OSError if it cannot be stored; a restarted server would then resume the
        batch."""
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

    async def _advance(self) -> None:
        record = self.record
        if record.status is BatchStatus.VALIDATING:
            await self._validate()
        if record.status in (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING):
            await self._run_lines()
        if record.status is BatchStatus.FINALIZING:
            await self._finalize()

    # Validation

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
            logger.info("batches: %s failed: %s", record.id, checked.errors[0].message)
            return
        record.enter(BatchStatus.IN_PROGRESS, parts.clock())
        await self._save(record)
        logger.info(
            "batches: %s has begun: %d requests for %s", record.id, record.total, record.model
        )

    async def _check(self, check: Coroutine[None, None, CheckedInput]) -> CheckedInput:
        """Returns the result of the check, or an empty result if `cancel` interrupts the check."""
        self._checking = asyncio.ensure_future(check)
        try:
            await asyncio.wait([self._checking])
        finally:
            self._checking.cancel()
            await asyncio.wait([self._checking])
            checking, self._checking = self._checking, None
        return CheckedInput() if checking.cancelled() else checking.result()

    async def _end(self, status: BatchStatus) -> None:
        """Stores the final status of the batch and shows it to clients. Raises OSError."""
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
                await self._run_all_lines(log)
            await log.flush()
            await threads.run(log.sync)
        finally:
            self._log = None
            await log.close()
        self._update_record(log)
        record.enter(BatchStatus.FINALIZING, parts.clock())
        await self._save(record)

    async def _run_all_lines(self, log: ResultLog) -> None:
        """Runs all lines, and writes an error result for each line that is not run. Raises
        temporary errors, which the caller retries."""
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
            self._faults.fail_with(error)

    async def _may_start(self) -> bool:
        """Returns whether the batch may run: False after several consecutive processes have ended
        while the batch ran."""
        record, log = self.record, self._log
        assert log is not None
        if self._has_started:
            return True
        self._has_started = True
        is_idle = log.num_done == record.num_done
        record.num_idle_starts = record.num_idle_starts + 1 if is_idle else 1
        record.num_done = log.num_done
        if record.num_idle_starts > MAX_IDLE_STARTS:
            message = f"the server has ended {MAX_IDLE_STARTS} times while the batch ran"
            self._faults.end_with(BatchError("server_error", message))
            logger.error("batches: %s cannot continue: %s", record.id, message)
            return False
        await self._save(record)
        return True

    async def _run_in_time(self, runner: LineRunner) -> None:
        """Runs lines until all are done, or the batch is cancelled or has expired."""
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
        if self._log is not None:
            self._update_record(self._log)

    def _update_record(self, log: ResultLog) -> None:
        self.record.completed, self.record.failed = log.num_completed, log.num_failed
        self.record.usage = log.usage

    # Finalizing

    @property
    def _paths(self) -> ResultPaths:
        id, work = self.record.id, self._work
        return ResultPaths(work / f"{id}.output", work / f"{id}.errors")

    async def _finalize(self) -> None:
        """Creates the output files. Files that an earlier process has created are kept."""
        record = self.record
        paths = self._paths
        record.output_file_id = await self._publish(paths.output, record.output_id, "output")
        record.error_file_id = await self._publish(paths.errors, record.error_id, "errors")
        await self._end(record.outcome)
        logger.info(
            "batches: %s is %s: %d completed, %d failed",
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
    """Returns the size of a file in bytes; deletes an empty file and returns None. Raises OSError
    if the file cannot be accessed."""
    size = path.stat().st_size if path.exists() else 0
    if not size:
        path.unlink(missing_ok=True)
    return size or None


FOLDER: Final = "batches"


class BatchRunner:
    """The batches of all tenants. Methods run on the event loop; files are written in threads.
    `directory` holds the batches' records and results; the lock of the files' directory protects
    it. Raises OSError if the directory is not available."""

    def __init__(self, directory: Path, config: BatchConfig, parts: BatchParts) -> None:
        self._config = config
        self._records = Records(directory / "records", BatchRecord)
        self._work = directory / "work"
        private_directory(self._work)
        self._parts = parts
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()
        self._tenants: Collection[str] | None = None
        self._saving = asyncio.Lock()
        self._unfinished = Shares.of_places(config.max_unfinished)
        self._is_closed = False

    def start(self, tenants: Collection[str] | None = None) -> None:
        """Resumes the batches that have not ended, except paused ones. For `tenants` see
        `set_tenants`; None = all tenants."""
        self._tenants = tenants
        for record in self.unfinished():
            if self._may_run(record):
                logger.info("batches: %s is resumed in status %s", record.id, record.status)
                self._drive(record)
            else:
                logger.warning("batches: %s is paused: its API key is not known", record.id)

    def set_tenants(self, tenants: Collection[str]) -> int:
        """Runs only the batches of these tenants from now on, and returns the number of paused
        batches. Batches of other tenants, for example of a removed key, are paused until the key is
        added again or they are cancelled."""
        self._tenants = tenants
        unfinished = self.unfinished()
        for record in unfinished:
            if not self._may_run(record):
                if (task := self._tasks.get(record.id)) is not None:
                    self._stopping.add(record.id)
                    task.cancel()
            elif record.id not in self._runs:
                self._drive(record)
        return sum(not self._may_run(record) for record in unfinished)

    def unfinished(self) -> Sequence[BatchRecord]:
        """Returns the unfinished batches of all tenants, oldest first."""
        found = [record for record in self._records.known.values() if not record.has_ended]
        return sorted(found, key=lambda record: record.created_at)

    def is_held(self, record: BatchRecord) -> bool:
        """Returns whether an unfinished batch is paused, for example because its key was
        removed."""
        return record.id not in self._runs and not record.has_ended

    def _may_run(self, record: BatchRecord) -> bool:
        is_known = self._tenants is None or record.tenant in self._tenants
        return is_known or record.status in (BatchStatus.CANCELLING, BatchStatus.FINALIZING)

    async def close(self) -> None:
        """Stops all batches. The next process resumes them."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def num_running(self) -> int:
        return len(self._runs)

    def find(self, tenant: str, id: str) -> BatchRecord | None:
        """Returns a tenant's batch; None = the tenant has no such batch."""
        return self._records.find(tenant, id)

    def list(self, tenant: str) -> Sequence[BatchRecord]:
        """Returns a tenant's batches, oldest first."""
        return self._records.of(tenant)

    def check_room(self, owner: str) -> None:
        """Raises Overloaded if the owner has reached its limit of unfinished batches."""
        if not self._unfinished.may_take(owner):
            count = self._unfinished.held(owner)
            message = f"{count} batches of yours have not ended, which is the limit for now"
            raise Overloaded(message, retry_after=60.0)

    async def add(self, record: BatchRecord) -> None:
        """Stores a new batch and starts it, even if the caller is cancelled. Raises Overloaded if
        the owner has reached its limit of unfinished batches; OSError if the batch cannot be
        stored."""
        self.check_room(record.shared_by)
        self._unfinished.hold(record.shared_by)
        try:
            await run_to_end(self._add(record))
        finally:
            self._unfinished.give_back(record.shared_by)

    async def _add(self, record: BatchRecord) -> None:
        """Stores a batch and starts it. Must not be interrupted: a batch that is only stored would
        run after the next server start in addition to the client's retry."""
        files = self._parts.files
        files.pin(record.input_file_id)
        try:
            await self._save(record)
            self._records.known[record.id] = record
            if not self._is_closed:
                self._drive(record)
        finally:
            files.unpin(record.input_file_id)
        self._forget_oldest()

    async def cancel(self, record: BatchRecord) -> BatchRecord:
        """Cancels a batch unless it has ended. Returns and raises as `BatchRun.cancel` does."""
        if self.is_held(record) and not self._is_closed:
            self._drive(record)
        run = self._runs.get(record.id)
        return record if run is None else await run.cancel()

    def _drive(self, record: BatchRecord) -> None:
        run = self._runs[record.id] = BatchRun(record, self._parts, self._save, self._work)
        self._unfinished.hold(record.shared_by)
        self._parts.files.pin(record.input_file_id)
        task = asyncio.ensure_future(run.drive())
        self._tasks[record.id] = task

        def end(task: asyncio.Task[None]) -> None:
            del self._tasks[record.id]
            del self._runs[record.id]
            self._unfinished.give_back(record.shared_by)
            self._parts.files.unpin(record.input_file_id)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error(
                    "batches: %s has stopped until the next start of the server",
                    record.id,
                    exc_info=error,
                )
            if record.id in self._stopping:
                self._stopping.discard(record.id)
                if self.is_held(record) and not self._is_closed and self._may_run(record):
                    self._drive(record)  # the key was added again while the batch was stopping

        task.add_done_callback(end)

    async def _save(self, record: BatchRecord) -> None:
        # The write is completed even if the task is cancelled.
        await run_to_end(self._write(record))

    async def _write(self, record: BatchRecord) -> None:
        async with self._saving:  # two writes of one record must not overtake each other
            await self._parts.files.threads.run(self._records.write, record.id, record)

    def _forget_oldest(self) -> None:
        """Deletes the oldest ended batches beyond the limit, those of the owner with the most
        batches first."""
        ended = defaultdict[str, deque[BatchRecord]](deque)
        for record in sorted(self._records.known.values(), key=lambda record: record.created_at):
            if record.has_ended:
                ended[record.shared_by].append(record)
        for _ in range(sum(map(len, ended.values())) - self._config.max_kept):
            record = max(ended.values(), key=len).popleft()
            del self._records.known[record.id]
            self._parts.files.threads.begin(self._erase, record.id)

    def _erase(self, id: str) -> None:
        try:
            self._records.delete(id)
        except OSError as error:
            logger.error("batches: cannot delete the record of %s: %s", id, error)
