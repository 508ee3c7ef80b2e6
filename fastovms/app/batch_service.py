"""Puts the parts together that keep files and run batches beside a server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fastovms.api.admin.work import WorkItem
from fastovms.api.batches.batch_routes import add_batch_routes
from fastovms.api.batches.batches import Batches, KeptBatches, batch_work
from fastovms.api.batches.endpoints import BatchEndpoints, refuse_line
from fastovms.api.files.file_endpoints import Files, KeptFiles
from fastovms.api.generation.context import ApiContext
from fastovms.batches.batch_run import BatchParts
from fastovms.batches.batch_runner import FOLDER as BATCH_FOLDER
from fastovms.batches.batch_runner import BatchRunner
from fastovms.batches.input_checker import InputChecker
from fastovms.batches.line_caller import LineCaller
from fastovms.batches.slots import LineSlots
from fastovms.config.files_config import BatchConfig, FilesConfig
from fastovms.errors import ConfigurationError
from fastovms.files.file_store import FOLDER as FILE_FOLDER
from fastovms.files.file_store import FileStore
from fastovms.http.routing.router import Router
from fastovms.system.disk_threads import DiskThreads

logger = logging.getLogger(__name__)


class BatchService:
    """Files and batches of one server. They lie in the directory of its state, which it locks: a
    batch belongs to the server that has the directory, also where responses are in a database that
    several share.

    Args:
        directory: None = the operator wants nothing on the disk.
        clock: tells the Unix time.
    """

    def __init__(
        self,
        directory: Path | None,
        files: FilesConfig,
        batches: BatchConfig,
        clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._config = batches
        self._clock = clock
        self._threads = DiskThreads("files")
        self._store: FileStore | None = None
        self._runner: BatchRunner | None = None
        self._kept = KeptBatches(None)
        self._reason = "its state is not in a directory (see --state-dir)"
        if directory is not None:
            try:
                self._store = FileStore(directory / FILE_FOLDER, files, clock, self._threads)
            except ConfigurationError as error:
                self._reason = str(error)
                logger.warning("there are no files and batches: %s", error)

    def start(
        self,
        router: Router,
        context: ApiContext,
        num_others: Callable[[], int],
        tenants: Collection[str] | None = None,
    ) -> None:
        """Adds the routes, and resumes the batches of the process before.

        Args:
            num_others: returns how many other requests run.
            tenants: see `set_tenants`; None = all.
        """
        config = self._config
        kept = KeptFiles(self._store, self._reason)
        endpoints = BatchEndpoints(router, context.models, config.max_lines)
        if self._store is not None and self._directory is not None:

            def limit() -> int:
                return config.num_beside_others if num_others() else config.num_at_once

            caller = LineCaller(
                router, context.new_id, refuse_line, lambda: context.models.failure is not None
            )
            parts = BatchParts(
                self._store, caller, LineSlots(limit), InputChecker(), endpoints.rules, self._clock
            )
            try:
                self._runner = BatchRunner(self._directory / BATCH_FOLDER, config, parts)
            except OSError as error:
                self._reason = f"{self._directory / BATCH_FOLDER}: {error.strerror or error}"
                logger.warning("there are no batches: %s", error)
        is_fault = self._store is not None
        self._kept = KeptBatches(self._runner, self._reason, is_fault=is_fault)
        batches = Batches(
            kept,
            self._kept,
            endpoints,
            context.bodies,
            context.new_id,
            self._clock,
        )
        add_batch_routes(router, Files(kept, context.new_id, self._clock), batches)
        if self._runner is not None and self._store is not None:
            self._runner.start(tenants)
            self._store.drop_expired()  # the inputs of unfinished batches are safe by now

    def set_tenants(self, tenants: Collection[str]) -> int:
        """Holds the batches of all but these tenants, and returns how many are held."""
        return 0 if self._runner is None else self._runner.set_tenants(tenants)

    async def work(self) -> Sequence[WorkItem]:
        """Returns the batches of all tenants that have not ended."""
        return await batch_work(self._kept)

    async def stop(self) -> None:
        """Stops all batches. The next process goes on with them."""
        if self._runner is not None:
            await self._runner.close()

    async def close(self) -> None:
        """Stops all batches, and gives the directory free."""
        await self.stop()
        await self._threads.close()
        if self._store is not None:
            self._store.close()
            self._store = None
