"""Goes on with responses that were cut off, one after the other, and gives up those that seem to
cut everything off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import Final

from fastovms.api.responses.background import BackgroundRun
from fastovms.api.responses.background_runs import BackgroundRuns
from fastovms.api.responses.output.response_object import ResponseStatus, failed
from fastovms.api.responses.resumption.run_restorer import CannotGoOn, RunRestorer
from fastovms.api.serving.served import ServedModel
from fastovms.errors import BackendError, Overloaded, RequestError, TooLarge
from fastovms.state.store import OwnedResponse, ResponseKey, StateStore

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""How often it is tried to go on with a response of which nothing more comes. What ends its process
each time must not do so for ever."""

_RETRY: Final = 1.0
"""Seconds after which a response is queued again for which there was no room."""

_CANCELLED: Final = "cancelled"
"""The line of responses that are to be cancelled: no model is identified by a single word."""

_by_attempts = attrgetter("num_attempts")


class Resumer:
    """Goes on with responses that this replica owns and does not run.

    Those of each model stand in a line. The first one is tried: it is begun, and the next one waits
    until something that its model has said is kept. Where the process ends before, this one may
    have been the cause, and no other has been tried in vain. Those that were tried in vain come
    last, so that the others go on however often the process ends.

    Those that are to be cancelled have a line of their own, in which none needs a model.

    Args:
        tenants: returns whose responses are resumed; None = everybody's. Those of others, such as
            of a key that was removed, are held until they are cancelled.
    """

    def __init__(
        self,
        store: StateStore,
        runs: BackgroundRuns,
        restorer: RunRestorer,
        tenants: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._store = store
        self._runs = runs
        self._restorer = restorer
        self._tenants = tenants
        self._lines: dict[str, dict[ResponseKey, None]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def room(self) -> int:
        """How many more responses this replica may take over."""
        return max(0, self._runs.room - sum(map(len, self._lines.values())))

    def tenants(self) -> Collection[str] | None:
        """Returns the tenants whose responses are resumed; None = all."""
        return None if self._tenants is None else self._tenants()

    def models(self) -> list[str]:
        """Returns what identifies the models whose responses this replica can go on with."""
        return self._restorer.models()

    def add(self, responses: Iterable[OwnedResponse]) -> None:
        """Has it go on with responses, unless it is about to."""
        for response in sorted(responses, key=_by_attempts):
            model = response.model
            if response.cancel_requested:
                self._lines.get(model, {}).pop(response.key, None)
                model = _CANCELLED
            self._lines.setdefault(model, {})[response.key] = None
            if model not in self._tasks:
                self._tasks[model] = asyncio.ensure_future(self._run(model))

    async def close(self) -> None:
        """Begins with no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, model: str) -> None:
        """Goes on with the responses of one line."""
        line = self._lines[model]
        try:
            while line:
                key = next(iter(line))
                try:
                    await self._go_on(key, model)
                except BackendError as error:
                    logger.warning("%d responses are not gone on with now: %s", len(line), error)
                    return
                except TooLarge as error:
                    logger.warning("response %s is not gone on with now: %s", key.id, error)
                except Exception:
                    logger.exception("response %s is not gone on with", key.id)
                line.pop(key, None)
        finally:
            del self._lines[model], self._tasks[model]

    async def _go_on(self, key: ResponseKey, model: str) -> None:
        """Goes on with a response until that has led to anything, or has it fail.

        Raises:
            BackendError: neither is possible now, nor with others of the model.
            TooLarge: it cannot be kept that the response has failed.
        """
        if model == _CANCELLED:
            await self._restorer.end(key, ResponseStatus("cancelled"))
            return
        tenants = self.tenants()
        if not model or (tenants is not None and key.tenant not in tenants):
            await self._store.give_up([key])
            return
        try:
            async with self._restorer.held(model) as served:
                await self._try(key, served)
        except (CannotGoOn, RequestError) as error:
            logger.error("response %s has failed: %s", key.id, error)
            await self._restorer.end(key, failed(str(error)))

    async def _try(self, key: ResponseKey, model: ServedModel) -> None:
        """Counts an attempt, and makes it. It raises as `RunRestorer.restored` does, too."""
        cut = await self._store.begin_attempt(*key)
        if cut is None:
            await self._store.give_up([key])
            return
        if cut.num_attempts > MAX_ATTEMPTS:
            raise CannotGoOn(
                f"the server has gone on with the response {MAX_ATTEMPTS} times in vain"
            )
        run = await self._restorer.restored(key, cut, model)
        await self._start(run)
        logger.info("response %s goes on behind event %d", key.id, run.log.num_events)
        if cut.cancel_requested:
            run.cancel()
        await run.advanced()

    async def _start(self, run: BackgroundRun) -> None:
        """Starts a run as soon as there is room in the queue of its model."""
        while True:
            try:
                self._runs.go_on(run)
                return
            except Overloaded:
                await asyncio.sleep(_RETRY)
