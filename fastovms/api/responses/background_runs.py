"""Holds what of responses outlives requests: those that run, and the store of all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastovms.api.responses.background import BackgroundRun, id_is_taken
from fastovms.errors import Overloaded, StateFailed
from fastovms.fair_queue import Shares
from fastovms.state.store import ResponseKey, StateStore

logger = logging.getLogger(__name__)


class BackgroundRuns:
    """The runs that have not ended.

    Args:
        max_runs: how many one owner may have; the others may have as many again.
    """

    def __init__(self, max_runs: int) -> None:
        self._places = Shares.of_places(max_runs)
        self._runs: dict[ResponseKey, BackgroundRun] = {}
        self._tasks: dict[BackgroundRun, asyncio.Task[None]] = {}

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    @property
    def room(self) -> int:
        """How many more any owner may have."""
        return max(0, self._places.free - self._places.used)

    def check_room(self, owner: str) -> None:
        """Raises Overloaded where the owner has as many runs as it may have."""
        if not self._places.may_take(owner):
            count = self._places.held(owner)
            raise Overloaded(f"{count} responses of yours run in the background already")

    def start(self, run: BackgroundRun) -> None:
        """Starts a run. It raises as `BackgroundRun.submit` does, too.

        Raises:
            Overloaded: its owner has as many as it may have.
            InvalidField: another response has the id.
        """
        self.check_room(run.owner)
        if run.key in self._runs:
            raise id_is_taken(run.id)
        run.submit()
        self._drive(run)

    def go_on(self, run: BackgroundRun) -> None:
        """Starts a run that was cut off, however many there are: it was let in before. It raises as
        `BackgroundRun.go_on` does."""
        run.go_on()
        self._drive(run)

    def _drive(self, run: BackgroundRun) -> None:
        key = run.key
        task = asyncio.ensure_future(run.drive())
        self._runs[key] = run
        self._tasks[run] = task
        self._places.hold(run.owner)

        def end(task: asyncio.Task[None]) -> None:
            del self._tasks[run]
            del self._runs[key]
            self._places.give_back(run.owner)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("response %s is lost", run.id, exc_info=error)

        task.add_done_callback(end)

    def find(self, tenant: str, id: str) -> BackgroundRun | None:
        return self._runs.get(ResponseKey(tenant, id))

    def all(self) -> list[BackgroundRun]:
        return list(self._runs.values())

    def cancel_all(self, tenants: Collection[str]) -> int:
        """Has the responses of all but these tenants end as cancelled. Returns how many."""
        runs = [run for key, run in self._runs.items() if key.tenant not in tenants]
        for run in runs:
            run.cancel()
        return len(runs)

    def leased(self) -> list[BackgroundRun]:
        """Returns those that the store has as running on this replica."""
        return [run for run in self._runs.values() if run.is_leased]

    async def cancel(self, run: BackgroundRun) -> None:
        """Cancels a run, and returns when it is kept as cancelled, or as what it had become. It
        raises as `kept` does."""
        run.cancel()
        await self.kept(run)

    async def kept(self, run: BackgroundRun) -> None:
        """Returns when the run has ended and is kept.

        Raises:
            StateFailed: it has ended, and cannot be kept for now.
        """
        task = self._tasks.get(run)
        if task is None:
            return
        held_up = asyncio.ensure_future(run.held_up())
        try:
            await asyncio.wait((task, held_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            held_up.cancel()
        if not task.done():
            raise StateFailed("the response has ended, but cannot be kept until the state is back")

    async def drain(self, seconds: float) -> None:
        """Waits until all have ended, but no longer than so many seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)


@dataclass(frozen=True, slots=True)
class ResponsesState:
    """What of responses outlives requests.

    Attributes:
        resumes: whether somebody goes on with responses that were cut off.
        attended: the responses that run for a client and are kept when they have ended, by tenant
            and id.
        being_created: the responses in the background that are not among the runs yet.
    """

    store: StateStore
    runs: BackgroundRuns
    resumes: bool = False
    attended: set[tuple[str, str]] = field(default_factory=set)
    being_created: dict[ResponseKey, asyncio.Future[None]] = field(default_factory=dict)

    @property
    def may_run_elsewhere(self) -> bool:
        """Whether what is kept as running, and does not run here, runs on another replica, or will
        be gone on with."""
        return self.resumes or self.store.lease is not None

    @contextmanager
    def creating(self, tenant: str, id: str) -> Iterator[None]:
        """Notes in a `with` statement that a response in the background is created: `created` waits
        for its end, or for `note_created`.

        Raises:
            InvalidField: another one has the id.
        """
        key = ResponseKey(tenant, id)
        if key in self.being_created or key in self.attended:
            raise id_is_taken(id)
        self.being_created[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self.note_created(tenant, id)

    def note_created(self, tenant: str, id: str) -> None:
        """Notes that a response is among the runs, or will not be."""
        future = self.being_created.pop(ResponseKey(tenant, id), None)
        if future is not None:
            future.set_result(None)

    async def created(self, tenant: str, id: str) -> None:
        """Returns once a response is no longer being created: a client that has chosen the id may
        ask for it before."""
        future = self.being_created.get(ResponseKey(tenant, id))
        if future is not None:
            await asyncio.shield(future)

    @contextmanager
    def attending(self, tenant: str, id: str) -> Iterator[None]:
        """Notes in a `with` statement that a response runs for a client.

        Raises:
            InvalidField: another one has the id.
        """
        key = ResponseKey(tenant, id)
        if key in self.attended or key in self.being_created:
            raise id_is_taken(id)
        self.attended.add(key)
        try:
            yield
        finally:
            self.attended.remove(key)
