"""Renews the leases of what runs on this replica, cancels what others ask to, and ends what is left
of replicas that are gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from fastovms.api.responses.background_runs import BackgroundRuns
from fastovms.api.responses.stored.kept_stream import LOOK_AGAIN
from fastovms.errors import StateFailed
from fastovms.state.store import StateStore

logger = logging.getLogger(__name__)

_INTERVAL: Final = 1.0
"""Seconds between two renewals: a lease of some seconds outlasts a few that fail."""


async def cancel_elsewhere(store: StateStore, tenant: str, id: str) -> None:
    """Cancels a response, if another replica runs it, and returns when none does any more: it is
    kept as cancelled or as what it had become, or the lease has expired."""
    if store.lease is None:
        return
    with store.watch_response(tenant, id) as watch:
        while await store.request_cancel(tenant, id):
            await watch.changed(LOOK_AGAIN)


class LeaseKeeper:
    """Renews the leases of this replica every second, where others use the store.

    Args:
        clock: tells seconds that only grow.
    """

    def __init__(
        self, store: StateStore, runs: BackgroundRuns, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._runs = runs
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._renewed_at: float | None = None
        self._steady_since = 0.0

    def start(self) -> None:
        if self._store.lease is not None:
            self._task = asyncio.ensure_future(self._run(self._store.lease))

    async def close(self) -> None:
        """Ends, and gives up what this replica still owns, so that nobody waits for the leases to
        expire."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
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
            owned = dict(await self._store.renew_leases())
            for run in expected:
                if run.key not in owned:
                    run.lose()
            orphans = []
            for key, cancel_requested in owned.items():
                run_of_key = self._runs.find(*key)
                if run_of_key is None:
                    orphans.append(key)
                elif cancel_requested:
                    run_of_key.cancel()
            if orphans:
                await self._store.give_up(orphans)
            if self._is_steady(lease):
                await self._store.interrupt_expired()
        except StateFailed:
            self._renewed_at = None

    async def _run(self, lease: float) -> None:
        with self._store.watch_cancels() as watch:
            while True:
                await self.renew(lease)
                await watch.changed(_INTERVAL)

    def _is_steady(self, lease: float) -> bool:
        """Takes note of a renewal. Returns whether the store could be had for the whole time of a
        lease: a lease that has expired in an outage is no sign that its replica is gone."""
        now = self._clock()
        if self._renewed_at is None or now - self._renewed_at > lease / 2:
            self._steady_since = now
        self._renewed_at = now
        return now - self._steady_since >= lease
