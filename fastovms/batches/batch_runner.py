"""Holds all batches: keeps what is known of them, and runs those that have not ended."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from fastovms.batches.batch_record import BatchRecord, BatchStatus
from fastovms.batches.batch_run import BatchParts, BatchRun
from fastovms.config.files_config import BatchConfig
from fastovms.errors import Overloaded
from fastovms.fair_queue import Shares
from fastovms.files.record_folder import RecordFolder
from fastovms.system.run_to_end import run_to_end
from fastovms.system.user_dirs import private_directory

logger = logging.getLogger(__name__)

FOLDER: Final = "batches"


class BatchRunner:
    """The batches of all tenants. It runs on the event loop, and writes in threads.

    Args:
        directory: beside that of the files, under whose lock it is.

    Raises:
        OSError: it cannot be had.
    """

    def __init__(self, directory: Path, config: BatchConfig, parts: BatchParts) -> None:
        self._config = config
        self._folder = RecordFolder(directory / "records", BatchRecord)
        self._work = directory / "work"
        private_directory(self._work)
        self._parts = parts
        self._records = {record.id: record for record in self._folder.read_all()}
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()
        self._tenants: Collection[str] | None = None
        self._saving = asyncio.Lock()
        self._unfinished = Shares.of_places(config.max_unfinished)
        self._is_closed = False

    def start(self, tenants: Collection[str] | None = None) -> None:
        """Resumes the batches that have not ended, except those that are held.

        Args:
            tenants: see `set_tenants`; None = all.
        """
        self._tenants = tenants
        for record in self.unfinished():
            if self._may_run(record):
                logger.info("batch %s is resumed, %s", record.id, record.status)
                self._drive(record)
            else:
                logger.warning("batch %s is held: its API key is not known", record.id)

    def set_tenants(self, tenants: Collection[str]) -> int:
        """Runs the batches of these tenants from now on. Those of others, such as of a key that was
        removed, are held as they are until their key is back or they are cancelled. Returns how
        many are held. Before it is called for the first time, none is."""
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
        """Returns the batches of all tenants that have not ended, the oldest first."""
        found = [record for record in self._records.values() if not record.has_ended]
        return sorted(found, key=lambda record: record.created_at)

    def is_held(self, record: BatchRecord) -> bool:
        return record.id not in self._runs and not record.has_ended

    def _may_run(self, record: BatchRecord) -> bool:
        is_known = self._tenants is None or record.tenant in self._tenants
        return is_known or record.status in (BatchStatus.CANCELLING, BatchStatus.FINALIZING)

    async def close(self) -> None:
        """Stops all batches. The next process goes on with them."""
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
        record = self._records.get(id)
        return record if record is not None and record.tenant == tenant else None

    def list(self, tenant: str) -> Iterator[BatchRecord]:
        """Yields a tenant's batches, the oldest first."""
        found = [record for record in self._records.values() if record.tenant == tenant]
        return iter(sorted(found, key=lambda record: (record.created_at, record.id)))

    def check_room(self, owner: str) -> None:
        """Raises Overloaded where the owner has as many unfinished batches as it may have."""
        if not self._unfinished.may_take(owner):
            count = self._unfinished.held(owner)
            message = f"{count} batches of yours have not ended, which is the limit for now"
            raise Overloaded(message, retry_after=60.0)

    async def add(self, record: BatchRecord) -> None:
        """Takes a new batch in, and runs it, also where who asks for it is cancelled meanwhile.

        Raises:
            Overloaded: its owner has as many as it may have.
            OSError: it cannot be kept.
        """
        self.check_room(record.shared_by)
        self._unfinished.hold(record.shared_by)
        try:
            await run_to_end(self._add(record))
        finally:
            self._unfinished.give_back(record.shared_by)

    async def _add(self, record: BatchRecord) -> None:
        """Keeps a batch, and runs it: one that is on the disk alone would run after the next start,
        beside what a client asks for again."""
        files = self._parts.files
        files.pin(record.input_file_id)
        try:
            await self._save(record)
            self._records[record.id] = record
            if not self._is_closed:
                self._drive(record)
        finally:
            files.unpin(record.input_file_id)
        self._forget_oldest()

    async def cancel(self, record: BatchRecord) -> BatchRecord:
        """Has a batch end, unless it has. Returns and raises as `BatchRun.cancel` does."""
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
                logger.error("%s has stopped until the next start", record.id, exc_info=error)
            if record.id in self._stopping:
                self._stopping.discard(record.id)
                if self.is_held(record) and not self._is_closed and self._may_run(record):
                    self._drive(record)  # its key came back while it was being stopped

        task.add_done_callback(end)

    async def _save(self, record: BatchRecord) -> None:
        await run_to_end(self._write(record))  # what a thread writes, nobody may write beside it

    async def _write(self, record: BatchRecord) -> None:
        async with self._saving:  # of two writes of one record, the later one must stay
            await self._parts.files.threads.run(self._folder.write, record.id, record)

    def _forget_oldest(self) -> None:
        """Forgets ended batches beyond the limit: the oldest of the owner that has most of them."""
        ended = defaultdict[str, deque[BatchRecord]](deque)
        for record in sorted(self._records.values(), key=lambda record: record.created_at):
            if record.has_ended:
                ended[record.shared_by].append(record)
        for _ in range(sum(map(len, ended.values())) - self._config.max_kept):
            record = max(ended.values(), key=len).popleft()
            del self._records[record.id]
            self._parts.files.threads.begin(self._erase, record.id)

    def _erase(self, id: str) -> None:
        try:
            self._folder.delete(id)
        except OSError as error:
            logger.error("the record of %s cannot be deleted: %s", id, error)
