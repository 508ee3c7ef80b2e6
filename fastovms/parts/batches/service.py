"""Files and batches of a server, from its start to its shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fastovms.api.admin import RunningPart, WorkItem
from fastovms.api.context import ApiContext
from fastovms.errors import ConfigurationError
from fastovms.http.routing import Router
from fastovms.parts.batches.endpoints import (
    BatchEndpoints,
    Batches,
    add_batch_routes,
    batch_work,
    refuse_line,
)
from fastovms.parts.batches.files import Files, StatePart, path_for
from fastovms.parts.batches.input import InputChecker, LineSlots
from fastovms.parts.batches.runner import FOLDER as BATCH_FOLDER
from fastovms.parts.batches.runner import BatchParts, BatchRunner, LineCaller
from fastovms.parts.batches.store import FOLDER as FILE_FOLDER
from fastovms.parts.batches.store import FileStore
from fastovms.server_config import BatchConfig, FilesConfig
from fastovms.system.threads import DiskThreads

logger = logging.getLogger(__name__)

_FIRST_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
"""The maximum number of seconds between two attempts to open the files; each delay is twice the one
before."""


class BatchService(RunningPart):
    """Files and batches of a server, stored in its state directory, which is locked at the start or
    once it is available. A batch belongs to the server with that directory, even if responses are
    in a database that several servers share.

    Args:
        directory: the state directory; None = files and batches are off.
        clock: returns the Unix time.

    Attributes:
        files: the handlers of files.
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
        self._open_store = partial(FileStore, config=files, clock=clock, threads=self._threads)
        self._store: FileStore | None = None
        self._runner: BatchRunner | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tenants: Collection[str] | None = None
        reason = "its state is not in a directory (see --state-dir)"
        if directory is not None:
            try:
                self._store = self._open_store(directory / FILE_FOLDER)
            except ConfigurationError as error:
                reason = str(error)
                logger.warning("files and batches are not available: %s", error)
        is_fault = directory is not None
        self.files = StatePart("files", self._store, reason, is_fault=is_fault)
        self._kept = StatePart[BatchRunner]("batches", None, reason, is_fault=is_fault)

    def start(
        self,
        router: Router,
        context: ApiContext,
        num_others: Callable[[], int],
        tenants: Collection[str] | None = None,
    ) -> None:
        """Adds the routes and resumes interrupted batches.

        Args:
            num_others: returns the number of other running requests.
            tenants: see `set_tenants`; None = all tenants.
        """
        config = self._config
        endpoints = BatchEndpoints(router, context.models, config.max_lines)

        def limit() -> int:
            return config.num_while_others_run if num_others() else config.num_at_once

        caller = LineCaller(
            router,
            context.new_id,
            refuse_line,
            lambda: context.models.failure is not None,
            context.find_budget,
        )
        slots, checker = LineSlots(limit), InputChecker()

        def open_all(directory: Path) -> BatchRunner:
            if self._store is None:
                self._store = self._open_store(directory / FILE_FOLDER)
            parts = BatchParts(self._store, caller, slots, checker, endpoints.rules, self._clock)
            folder = directory / BATCH_FOLDER
            try:
                return BatchRunner(folder, config, parts)
            except OSError as error:
                raise ConfigurationError(f"{folder}: {error.strerror or error}") from None

        batches = Batches(
            self.files,
            self._kept,
            endpoints,
            context.bodies,
            context.new_id,
            self._clock,
        )
        add_batch_routes(router, Files(self.files, context.new_id, self._clock), batches)
        self._tenants = tenants
        if self._directory is None:
            return
        try:
            self._begin(open_all(self._directory))
        except ConfigurationError as error:
            if self._store is not None:
                logger.warning("batches are not available: %s", error)
            self._note(error)
            open_later = self._open_later(partial(open_all, self._directory))
            self._opening = asyncio.ensure_future(open_later)

    async def _open_later(self, open_all: Callable[[], BatchRunner]) -> None:
        """Opens the files and batches once the disk is available."""
        delay = _FIRST_DELAY
        while self._runner is None:
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)
            try:
                self._begin(await self._threads.run(open_all))
            except ConfigurationError as error:
                self._note(error)
            except Exception:
                logger.exception("files and batches cannot be opened")
        logger.warning("files and batches are available from now on")

    def _note(self, error: ConfigurationError) -> None:
        """Records why batches are not available; files, too, unless they are open already."""
        self._kept.reason = str(error)
        if self._store is None:
            self.files.reason = str(error)
        else:
            self.files.open(self._store)

    def _begin(self, runner: BatchRunner) -> None:
        """Makes the files and batches available, and resumes the batches."""
        assert self._store is not None
        self._runner = runner
        self.files.open(self._store)
        self._kept.open(runner)
        runner.start(self._tenants)
        self._store.drop_expired()  # the runner has pinned the inputs of unfinished batches

    def set_tenants(self, tenants: Collection[str]) -> int:
        """Pauses the batches of all other tenants, and returns the number of paused batches."""
        self._tenants = tenants
        return 0 if self._runner is None else self._runner.set_tenants(tenants)

    def path_for(self, tenant: str, id: str) -> Path:
        """Returns the path of a tenant's file. Raises as `files.path_for` does."""
        return path_for(self.files, tenant, id)

    async def work(self) -> Sequence[WorkItem]:
        return await batch_work(self._kept)

    async def drain(self, seconds: float) -> None:
        """Stops all batches. The next process resumes them."""
        if self._opening is not None:
            self._opening.cancel()
        if self._runner is not None:
            await self._runner.close()

    @property
    def ends(self) -> Sequence[tuple[str, Callable[[], Awaitable[object]]]]:
        return [("the files of batches", self.close)]

    async def close(self) -> None:
        """Stops all batches, and unlocks the directory."""
        await self.drain(0.0)
        await self._threads.close()
        if self._store is not None:
            self._store.close()
            self._store = None


def begin(
    router: Router,
    context: ApiContext,
    directory: Path | None,
    files: FilesConfig,
    batches: BatchConfig,
    clock: Callable[[], float],
    num_others: Callable[[], int],
    tenants: Collection[str] | None,
) -> BatchService:
    """Returns the started service; `BatchService` describes the arguments."""
    service = BatchService(directory, files, batches, clock)
    service.start(router, context, num_others, tenants)
    return service
