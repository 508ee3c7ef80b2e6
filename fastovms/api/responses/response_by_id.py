"""Answers `/responses/{id}`: gets, streams again, cancels and deletes a response, and lists its
input."""

from __future__ import annotations

import orjson

from fastovms.api.request.prompting import offload
from fastovms.api.responses.background_runs import ResponsesState
from fastovms.api.responses.lease_keeper import cancel_anywhere
from fastovms.api.responses.stored.event_log import EventLog
from fastovms.api.responses.stored.history import item_cost
from fastovms.api.responses.stored.kept_stream import stream_kept
from fastovms.api.responses.stored.list_page import list_body
from fastovms.api.responses.stored.missing import found, not_found
from fastovms.api.responses.stored.query import Query
from fastovms.api.responses.stored.records import from_record, running_body
from fastovms.api.responses.stored.replay import replay
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response
from fastovms.state.store import ResponseProgress, UnknownCursor


class StoredResponses:
    """Handlers of what is below `/responses/{id}`. Each raises NotFound for a response that is not
    kept here, or is somebody else's."""

    def __init__(self, state: ResponsesState | None) -> None:
        self._state = state

    async def get(self, request: Request, dialect: Dialect) -> Response | None:
        state, id = await self._find(request)
        query = Query(request)
        last = query.number("starting_after", 0)
        if query.flag("stream"):
            start = 0 if last is None else last + 1
            run = state.runs.find(request.tenant, id)
            if run is None:
                await stream_kept(request, state, id, start, dialect)
            else:
                await replay(request, run.log, start, dialect)
            return None
        if last is not None:
            raise InvalidField(
                "starting_after is only allowed when stream is true", param="starting_after"
            )
        run = state.runs.find(request.tenant, id)
        if run is None:
            return Response(200, await self._body(state, request.tenant, id))
        if run.has_ended:
            await state.runs.kept(run)
        return Response(200, orjson.dumps(run.body()))

    async def delete(self, request: Request, dialect: Dialect) -> Response:
        """Deletes a response. One that runs is cancelled first."""
        state, id = await self._find(request)
        await cancel_anywhere(state, request.tenant, id)
        if not await state.store.delete_response(request.tenant, id):
            raise not_found("Response", id)
        return Response(200, orjson.dumps({"id": id, "object": "response", "deleted": True}))

    async def cancel(self, request: Request, dialect: Dialect) -> Response:
        """Cancels a response; a second time changes nothing.

        Raises:
            InvalidField: it has ended otherwise, or runs for a client.
        """
        state, id = await self._find(request)
        if (request.tenant, id) in state.attended:
            raise _not_in_background()
        run = state.runs.find(request.tenant, id)
        if run is not None:
            await state.runs.cancel(run)
            body = orjson.dumps(run.body())
        else:
            await cancel_anywhere(state, request.tenant, id)
            body = await self._body(state, request.tenant, id)
        response = orjson.loads(body)
        if response["status"] == "cancelled":
            return Response(200, body)
        if not response["background"]:
            raise _not_in_background()
        raise InvalidField(f"the response cannot be cancelled: it is {response['status']}")

    async def list_input(self, request: Request, dialect: Dialect) -> Response:
        state, id = await self._find(request)
        page = Query(request).page()
        try:
            items = await state.store.list_input(request.tenant, id, page)
        except UnknownCursor:
            raise InvalidField(
                f"after: the response has no item with id '{page.after}'", param="after"
            ) from None
        return Response(200, list_body(found(items, "Response", id)))

    async def _body(self, state: ResponsesState, tenant: str, id: str) -> bytes:
        """Returns the response object of a response that does not run here, as JSON."""
        store = state.store
        kept = found(await store.find_response(tenant, id), "Response", id)
        if kept.progress is not ResponseProgress.RUNNING or not state.may_run_elsewhere:
            return from_record(kept)
        log = EventLog()
        events = await store.find_events(tenant, id, 0)
        for pack in () if events is None else events.packs:
            log.extend(pack)
        return await offload.run(lambda: running_body(kept, log), item_cost(log.num_bytes))

    async def _find(self, request: Request) -> tuple[ResponsesState, str]:
        id = request.path_params["id"]
        if self._state is None:
            raise not_found("Response", id)
        await self._state.created(request.tenant, id)
        return self._state, id


def _not_in_background() -> InvalidField:
    return InvalidField("only responses that run in the background can be cancelled")
