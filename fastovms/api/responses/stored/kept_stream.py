"""Streams a response that does not run on this replica: what the store has of it, and what it gets
while another replica runs it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import orjson

from fastovms.api.responses.background_runs import ResponsesState
from fastovms.api.responses.output.events import interrupted_events
from fastovms.api.responses.output.response_object import failed
from fastovms.api.responses.stored.event_log import EventLog
from fastovms.api.responses.stored.missing import found
from fastovms.api.responses.stored.records import from_record
from fastovms.api.responses.stored.replay import replay
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField, StateFailed
from fastovms.http.routing.messages import Request
from fastovms.state.store import FoundEvents, ResponseProgress
from fastovms.state.watchers import Watch

logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = 1.0
"""Seconds after which to look at a response that runs elsewhere, where nothing was told of it."""

_DELETED: Final = failed("the response was deleted")


async def stream_kept(
    request: Request, state: ResponsesState, id: str, start: int, dialect: Dialect
) -> None:
    """Streams a response, and returns when all of it is sent.

    Args:
        start: number of the first event.

    Raises:
        NotFound: there is no such response.
        InvalidField: it was not in the background.
    """
    with state.store.watch_response(request.tenant, id) as watch:
        reader = _LogReader(state, request.tenant, id, start, dialect)
        await reader.open()
        tasks = [
            asyncio.ensure_future(reader.read_to_end(watch)),
            asyncio.ensure_future(replay(request, reader.log, start, dialect)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


class _LogReader:
    """Reads the event log of a response from the store.

    Attributes:
        log: what was read. It is closed when there will be no more.
    """

    def __init__(
        self, state: ResponsesState, tenant: str, id: str, start: int, dialect: Dialect
    ) -> None:
        self.log = EventLog(start)
        self._store = state.store
        self._may_go_on = state.may_run_elsewhere
        self._tenant = tenant
        self._id = id
        self._dialect = dialect
        self._body = b""

    async def open(self) -> None:
        """Reads what there is. Raises as `stream_kept` does."""
        kept = found(await self._store.find_response(self._tenant, self._id), "Response", self._id)
        self._body = from_record(kept)
        if not orjson.loads(self._body)["background"]:
            raise InvalidField(
                "stream: only responses that run in the background can be streamed again",
                param="stream",
            )
        await self._read()

    async def read_to_end(self, watch: Watch) -> None:
        while not self.log.is_closed:
            await watch.changed(LOOK_AGAIN)
            try:
                await self._read()
            except StateFailed as error:
                logger.debug("response %s is followed when the store is back: %s", self._id, error)

    async def _read(self) -> None:
        """Reads what is new."""
        log = self.log
        events = await self._store.find_events(self._tenant, self._id, log.num_events)
        if events is None:
            self._fail(orjson.dumps({**orjson.loads(self._body), **_DELETED.members()}))
            return
        for pack in events.packs:
            log.extend(pack)
        if events.progress is ResponseProgress.FINISHED:
            log.close()
        elif self._is_lost(events):
            kept = await self._store.find_response(self._tenant, self._id)
            self._fail(self._body if kept is None else from_record(kept))
        else:
            log.append([])

    def _is_lost(self, events: FoundEvents) -> bool:
        """Tells whether nobody runs the response, or will: it would be this replica."""
        return events.progress is ResponseProgress.INTERRUPTED or not self._may_go_on

    def _fail(self, body: bytes) -> None:
        events = interrupted_events(orjson.loads(body), self.log.num_events, self._dialect)
        self.log.append(events, closes=True)
