"""Goes on with responses that were cut off, one after the other, and gives up those that seem to
cut everything off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from fastovms.api.responses.background import BackgroundRun
from fastovms.api.responses.background_runs import BackgroundRuns
from fastovms.api.responses.resumption.run_restorer import CannotGoOn, RunRestorer
from fastovms.errors import (
    BackendError,
    Overloaded,
    RequestError,
    StateFailed,
    TooLarge,
)
from fastovms.state.store import ResponseKey, StateStore

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""How often it is tried to go on with a response of which nothing more has come. What ends its
process each time must not do so for ever."""

_RETRY: Final = 1.0
"""Seconds after which a response is queued again for which there was no room."""


class Resumer:
    """Goes on with responses that this replica owns and does not run.

    They are begun in the order in which they were added. Behind one that was begun before, in vain,
    the others wait until it has got any further: where it ends the process again, they do not count
    as having been tried.
    """

    def __init__(self, store: StateStore, runs: BackgroundRuns, restorer: RunRestorer) -> None:
        self._store = store
        self._runs = runs
        self._restorer = restorer
        self._waiting: dict[ResponseKey, None] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def room(self) -> int:
        """How many more responses this replica may take over."""
        return max(0, self._runs.room - len(self._waiting))

    def models(self) -> list[str]:
        """Returns what identifies the models whose responses this replica can go on with."""
        return self._restorer.models()

    def add(self, keys: Iterable[ResponseKey]) -> None:
        """Has it go on with responses, unless it is about to."""
        self._waiting.update(dict.fromkeys(keys))
        if self._waiting and self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Begins with no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while self._waiting:
                key = next(iter(self._waiting))
                try:
                    await self._go_on(key)
                except (BackendError, StateFailed, TooLarge) as error:
                    logger.warning("response %s is not gone on with now: %s", key.id, error)
                except Exception:
                    logger.exception("response %s is not gone on with", key.id)
                del self._waiting[key]
        finally:
            self._task = None

    async def _go_on(self, key: ResponseKey) -> None:
        """Begins with a response, or has it fail.

        Raises:
            BackendError, StateFailed, TooLarge: neither is possible now.
        """
        cut = await self._store.begin_attempt(*key)
        if cut is None:
            await self._store.give_up([key])
            return
        try:
            if cut.num_attempts > MAX_ATTEMPTS:
                raise CannotGoOn(
                    f"the server has gone on with the response {MAX_ATTEMPTS} times in vain"
                )
            async with self._restorer.restored(key, cut) as run:
                await self._start(run)
                await run.accepted()
        except (CannotGoOn, RequestError) as error:
            logger.error("response %s has failed: %s", key.id, error)
            await self._restorer.fail(key, cut, str(error))
            return
        logger.info("response %s goes on behind event %d", key.id, run.log.num_events)
        if cut.cancel_requested:
            run.cancel()
        if cut.num_attempts > 1:
            await run.advanced()

    async def _start(self, run: BackgroundRun) -> None:
        """Starts a run as soon as there is room in the queue of its model."""
        while True:
            try:
                self._runs.go_on(run)
                return
            except Overloaded:
                await asyncio.sleep(_RETRY)
