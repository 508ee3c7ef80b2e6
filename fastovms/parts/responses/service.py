"""The Responses API of one server, from its start to its shutdown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final

from fastovms.api.admin import RunningPart, WorkItem
from fastovms.api.context import ApiContext
from fastovms.http.routing import Router
from fastovms.parts.responses.background import BackgroundRuns, ResponsesState
from fastovms.parts.responses.resumption import LeaseKeeper, Resumer, RunRestorer, response_work
from fastovms.parts.responses.routes import endpoints
from fastovms.server_config import StateConfig
from fastovms.state.state_store import StateStore

_LAST_WRITES: Final = 5.0
"""The maximum seconds, at shutdown, to store background responses that have ended."""


class ResponsesService(RunningPart):
    """Serves responses and conversations, and resumes interrupted responses.

    Args:
        store: None = responses are not stored.
        tenants: returns the tenants whose responses are resumed; None = all.
    """

    def __init__(
        self,
        router: Router,
        context: ApiContext,
        store: StateStore | None,
        config: StateConfig,
        tenants: Callable[[], Collection[str]] | None,
    ) -> None:
        self._runs = BackgroundRuns(config.max_background)
        self._state: ResponsesState | None = None
        self._keeper: LeaseKeeper | None = None
        if store is not None:
            self._state = ResponsesState(store, self._runs, config.resume)
            restorer = RunRestorer(context, store)
            resumer = Resumer(store, self._runs, restorer, tenants) if config.resume else None
            self._keeper = LeaseKeeper(store, self._runs, resumer)
            self._keeper.start()
        for route in endpoints(context, self._state):
            router.add(*route)

    @property
    def num_running(self) -> int:  # type: ignore[override]
        return self._runs.num_running

    async def work(self) -> Sequence[WorkItem]:
        return () if self._state is None else await response_work(self._state)

    def set_tenants(self, tenants: Collection[str]) -> int:
        return self._runs.cancel_all(tenants)

    async def drain(self, seconds: float) -> None:
        await self._runs.drain(seconds)

    @property
    def ends(self) -> Sequence[tuple[str, Callable[[], Awaitable[object]]]]:
        drain = ("responses in the background", partial(self._runs.drain, _LAST_WRITES))
        return (
            [drain]
            if self._keeper is None
            else [drain, ("giving up responses", self._keeper.close)]
        )
