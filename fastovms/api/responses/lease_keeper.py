"""Renews the leases of what runs on this replica, cancels what others ask to, and ends what is left
of replicas that are gone."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from fastovms.api.admin.work import WorkItem
from fastovms.api.responses.background_runs import BackgroundRuns, ResponsesState
from fastovms.api.responses.resumption.resumer import Resumer
from fastovms.api.responses.stored.kept_stream import LOOK_AGAIN
from fastovms.errors import StateFailed
from fastovms.state.store import OwnedResponse, ResponseKey, StateStore

logger = logging.getLogger(__name__)

_INTERVAL: Final = 1.0
"""Seconds between two renewals: a lease of some seconds outlasts a few that fail."""

_ALONE_INTERVAL: Final = 30.0
"""Seconds after which to look again for what was cut off, where no other replica uses the store."""

_MOST_LISTED: Final = 10_000
"""How many responses are listed for operators."""

_PATIENCE: Final = 600.0
"""Seconds that replicas have to take over a response, before it counts as interrupted: all that can
may be busy, or be about to start."""


async def cancel_anywhere(state: ResponsesState, tenant: str, id: str) -> None:
    """Cancels a response, wherever it runs, and returns when it does no more: it is kept as
    cancelled or as what it had become, or nobody goes on with it. It raises as
    `BackgroundRuns.kept` does."""
    with state.store.watch_response(tenant, id) as watch:
        while True:
            run = state.runs.find(tenant, id)
            if run is not None:
                await state.runs.cancel(run)
                return
            if not state.may_run_elsewhere or not await state.store.request_cancel(tenant, id):
                return
            await watch.changed(LOOK_AGAIN)


async def response_work(state: ResponsesState) -> list[WorkItem]:
    """Returns the background responses of all tenants, on whichever replica."""

    def work(key: ResponseKey, model: str, status: str, created_at: int | None) -> WorkItem:
        cancel = partial(cancel_anywhere, state, *key)
        return WorkItem("response", key.id, key.tenant, status, model, created_at, cancel)

    here = {run.key: run for run in state.runs.all()}
    found = [work(run.key, *run.summary()) for run in here.values()]
    for key, model, has_owner in await state.store.list_running(_MOST_LISTED):
        if key not in here:
            found.append(work(key, model, "in_progress" if has_owner else "held", None))
    return found


class LeaseKeeper:
    """Renews the leases of this replica every second, where others use the store. Where none does,
    it looks now and then for what was cut off.

    Args:
        resumer: goes on with what was cut off, here or on another replica; None = nobody here does.
        clock: tells seconds that only grow.
    """

    def __init__(
        self,
        store: StateStore,
        runs: BackgroundRuns,
        resumer: Resumer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._runs = runs
        self._resumer = resumer
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._renewed_at: float | None = None
        self._steady_since = 0.0

    def start(self) -> None:
        lease = self._store.lease
        if lease is not None:
            self._task = asyncio.ensure_future(self._run(lease))
        elif self._resumer is not None:
            self._task = asyncio.ensure_future(self._go_on(self._resumer))
        else:
            self._task = asyncio.ensure_future(self._end_cut())

    async def close(self) -> None:
        """Ends, and gives up what this replica still owns, so that nobody waits for the leases to
        expire."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        if self._resumer is not None:
            await self._resumer.close()
        if self._store.lease is None:
            return
        try:
            owned = await self._store.renew_leases()
            await self._store.give_up([response.key for response in owned])
        except StateFailed as error:
            logger.warning("running responses are not given up, and expire: %s", error)

    async def renew(self, lease: float) -> None:
        """Renews the leases once, and acts on what there is to know. Nothing is raised: a renewal
        that fails is followed by another."""
        expected = self._runs.leased()
        try:
            owned = {response.key: response for response in await self._store.renew_leases()}
            for run in expected:
                if run.key not in owned:
                    run.lose()
            orphans = []
            for key, response in owned.items():
                run_of_key = self._runs.find(*key)
                if run_of_key is None:
                    orphans.append(response)
                elif response.cancel_requested:
                    run_of_key.cancel()
            await self._take_care(orphans)
            steady_for = self._steady_for(lease)
            if steady_for >= lease:
                if self._resumer is not None:
                    await self._take_over(self._resumer)
                is_long = steady_for >= lease + _PATIENCE
                await self._store.interrupt_expired(_PATIENCE if is_long else math.inf)
        except StateFailed:
            self._renewed_at = None

    async def _take_over(self, resumer: Resumer) -> None:
        """Takes over what other replicas have left, as much as may run here."""
        if room := resumer.room:
            models, tenants = resumer.models(), resumer.tenants()
            resumer.add(await self._store.take_over(models, room, tenants))

    async def _take_care(self, orphans: Sequence[OwnedResponse]) -> None:
        """Goes on with responses that are this replica's and do not run here, or gives them up."""
        if self._resumer is not None:
            self._resumer.add(orphans)
        elif orphans:
            await self._store.give_up([response.key for response in orphans])

    async def _go_on(self, resumer: Resumer) -> None:
        """Goes on, from time to time, with what does not run though it is kept as running: after a
        start, but also once a disk can be written again. One that waits to be gone on with may be
        cancelled."""
        with self._store.watch_cancels() as watch:
            while True:
                try:
                    owned = await self._store.renew_leases()
                    resumer.add(one for one in owned if self._runs.find(*one.key) is None)
                except StateFailed as error:
                    logger.debug("what was cut off is looked for later: %s", error)
                await watch.changed(_ALONE_INTERVAL)

    async def _end_cut(self) -> None:
        """Has what was cut off before the start fail."""
        try:
            await self._store.interrupt_expired(0.0)
        except StateFailed as error:
            logger.warning("responses that were cut off still count as running: %s", error)

    async def _run(self, lease: float) -> None:
        with self._store.watch_cancels() as watch:
            while True:
                await self.renew(lease)
                await watch.changed(_INTERVAL)

    def _steady_for(self, lease: float) -> float:
        """Takes note of a renewal. Returns for how many seconds the store could be had: a lease
        that has expired in an outage is no sign that its replica is gone."""
        now = self._clock()
        if self._renewed_at is None or now - self._renewed_at > lease / 2:
            self._steady_since = now
        self._renewed_at = now
        return now - self._steady_since
