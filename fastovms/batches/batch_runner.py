"""Holds all batches: keeps what is known of them, and runs those that have not ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fastovms.batches.batch_record import BatchRecord
from fastovms.batches.batch_run import BatchParts, BatchRun
from fastovms.config.files_config import BatchConfig
from fastovms.errors import Overloaded
from fastovms.files.record_folder import RecordFolder

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
        self._work.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._parts = parts
        self._records = {record.id: record for record in self._folder.read_all()}
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._saving = asyncio.Lock()

    def start(self) -> None:
        """Goes on with the batches that have not ended."""
        for record in sorted(self._records.values(), key=lambda record: record.created_at):
            if not record.has_ended:
                logger.info("%s goes on, %s", record.id, record.status)
                self._drive(record)

    async def close(self) -> None:
        """Stops all batches. The next process goes on with them."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

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

    def check_room(self) -> None:
        """Raises Overloaded where there are as many unfinished batches as may be."""
        if len(self._runs) >= self._config.max_unfinished:
            raise Overloaded(
                f"{len(self._runs)} batches have not ended, which is the limit", retry_after=60.0
            )

    async def add(self, record: BatchRecord) -> None:
        """Takes a new batch in, and runs it.

        Raises:
            Overloaded: there are as many as may be.
            OSError: it cannot be kept.
        """
        self.check_room()
        await self._save(record)
        self._records[record.id] = record
        self._drive(record)
        await self._forget_oldest()

    async def cancel(self, record: BatchRecord) -> None:
        """Has a batch end, unless it has. Raises OSError."""
        run = self._runs.get(record.id)
        if run is not None:
            await run.cancel()

    def _drive(self, record: BatchRecord) -> None:
        run = self._runs[record.id] = BatchRun(record, self._parts, self._save, self._work)
        self._parts.files.pin(record.input_file_id)
        task = asyncio.ensure_future(run.drive())
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            del self._runs[record.id]
            self._parts.files.unpin(record.input_file_id)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("%s has stopped until the next start", record.id, exc_info=error)

        task.add_done_callback(end)

    async def _save(self, record: BatchRecord) -> None:
        async with self._saving:  # of two writes of one record, the later one must stay
            await asyncio.to_thread(self._folder.write, record.id, record)

    async def _forget_oldest(self) -> None:
        ended = [record for record in self._records.values() if record.has_ended]
        ended.sort(key=lambda record: record.created_at)
        for record in ended[: max(0, len(ended) - self._config.max_kept)]:
            del self._records[record.id]
            await asyncio.to_thread(self._folder.delete, record.id)
