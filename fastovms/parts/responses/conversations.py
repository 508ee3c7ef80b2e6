"""Endpoints `/conversations` and `/responses/{id}`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

import msgspec
import orjson
from msgspec import UNSET

from fastovms.api import offload
from fastovms.api.context import ApiContext
from fastovms.api.dialect import AnswerSchema, Dialect
from fastovms.api.endpoint import ListPage, json_response, read_metadata
from fastovms.errors import InvalidField, RequestError
from fastovms.http.messages import Request, Response
from fastovms.parts.responses.background import ResponsesState, stream_kept
from fastovms.parts.responses.events import EventLog, replay
from fastovms.parts.responses.history import item_cost
from fastovms.parts.responses.ids import item_id_factory, with_affinity
from fastovms.parts.responses.input import ItemRules, distinct, read_items
from fastovms.parts.responses.request import ConversationRequest, ConversationUpdate, ItemsRequest
from fastovms.parts.responses.resumption import cancel_anywhere
from fastovms.parts.responses.stored import (
    Query,
    found,
    from_record,
    list_body,
    not_found,
    running_body,
    to_items,
)
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import ItemPage, Page, ResponseProgress, StoredItem, UnknownCursor


class DeletedResponse(AnswerSchema, kw_only=True):
    """The answer of `DELETE /responses/{id}`."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class StoredResponses:
    """The handlers of `/responses/{id}` and the paths below it. Each raises NotFound for a response
    that is not stored here or belongs to another tenant."""

    def __init__(self, state: ResponsesState | None) -> None:
        self._state = state

    async def get(self, request: Request, dialect: Dialect) -> Response | None:
        """Returns a response, or streams its events if `stream=true`."""
        state, id = await self._find(request)
        query = Query(request)
        last = query.number("starting_after", 0)
        if query.flag("stream"):
            start = 0 if last is None else last + 1
            run = state.runs.find(request.caller.tenant, id)
            if run is None:
                await stream_kept(request, state, id, start, dialect)
            else:
                await replay(request, run.log, start, dialect)
            return None
        if last is not None:
            raise InvalidField.about("starting_after", "is only allowed when stream is true")
        run = state.runs.find(request.caller.tenant, id)
        if run is None:
            return Response(200, await self._body(state, request.caller.tenant, id))
        if run.has_ended:
            await state.runs.kept(run)
        return Response(200, orjson.dumps(run.body()))

    async def delete(self, request: Request, dialect: Dialect) -> Response:
        """Deletes a response. A running response is cancelled first."""
        state, id = await self._find(request)
        await cancel_anywhere(state, request.caller.tenant, id)
        if not await state.store.run(Operations.delete_response, request.caller.tenant, id):
            raise not_found("Response", id)
        return json_response(DeletedResponse(id=id))

    async def cancel(self, request: Request, dialect: Dialect) -> Response:
        """Cancels a response; a repeated cancellation changes nothing. Raises InvalidField if the
        response has completed or failed, or does not run in the background."""
        state, id = await self._find(request)
        if (request.caller.tenant, id) in state.attended:
            raise _not_in_background()
        run = state.runs.find(request.caller.tenant, id)
        if run is not None:
            await state.runs.cancel(run)
            body = orjson.dumps(run.body())
        else:
            await cancel_anywhere(state, request.caller.tenant, id)
            body = await self._body(state, request.caller.tenant, id)
        response = orjson.loads(body)
        if response["status"] == "cancelled":
            return Response(200, body)
        if not response["background"]:
            raise _not_in_background()
        raise InvalidField(f"the response cannot be cancelled: it is {response['status']}")

    async def list_input(self, request: Request, dialect: Dialect) -> Response:
        """Lists the input items of a response."""
        state, id = await self._find(request)
        page = Page(*Query(request).page())
        with _cursor("the response has no item", page):
            items = await state.store.run(Operations.list_input, request.caller.tenant, id, page)
        return Response(200, list_body(found(items, "Response", id)))

    async def _body(self, state: ResponsesState, tenant: str, id: str) -> bytes:
        """Returns the response object, as JSON, of a response that does not run on this replica."""
        store = state.store
        kept = found(await store.run(Operations.find_response, tenant, id), "Response", id)
        if kept.progress is not ResponseProgress.RUNNING or not state.may_run_elsewhere:
            return from_record(kept)
        log = EventLog()
        events = await store.run(Operations.find_events, tenant, id, 0)
        for pack in () if events is None else events.packs:
            log.extend(pack)
        return await offload.run(lambda: running_body(kept, log), item_cost(log.num_bytes))

    async def _find(self, request: Request) -> tuple[ResponsesState, str]:
        id = request.path_params["id"]
        if self._state is None:
            raise not_found("Response", id)
        await self._state.created(request.caller.tenant, id)
        return self._state, id


@contextmanager
def _cursor(fault: str, page: Page) -> Iterator[None]:
    """Converts the error for an unknown `after` cursor to InvalidField with the message `fault`."""
    try:
        yield
    except UnknownCursor:
        raise InvalidField(f"after: {fault} with id '{page.after}'", param="after") from None


def _not_in_background() -> InvalidField:
    return InvalidField("only responses that run in the background can be cancelled")


_MAX_ITEMS: Final = 20
"""The maximum number of items in one request, as in OpenAI's API."""

P = ParamSpec("P")
T = TypeVar("T")


class ConversationObject(AnswerSchema, kw_only=True):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationList(ListPage[ConversationObject]):
    """A page of conversations."""


class DeletedConversation(AnswerSchema, kw_only=True):
    """The answer of `DELETE /conversations/{id}`."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class ConversationHandlers:
    """The handlers of conversations. Each raises NotFound for a conversation or an item that is not
    stored here or belongs to another tenant."""

    def __init__(self, context: ApiContext, state: ResponsesState | None) -> None:
        self._context = context
        self._state = state
        self._bodies = context.bodies

    async def create(self, request: Request, dialect: Dialect) -> Response:
        """Creates a conversation."""
        store = self._store()
        asked = await self._bodies.read(request, ConversationRequest, default=b"{}")
        metadata = read_metadata(asked.metadata)
        items = await self._items(asked.items or (), request, dialect)
        digits = with_affinity(self._context.new_id(), request.headers)
        id = f"conv{dialect.responses.id_separator}{digits}"
        created_at = int(self._context.unix_time())
        conversation = ConversationObject(id=id, created_at=created_at, metadata=metadata)
        body = msgspec.json.encode(conversation)
        await store.run(Operations.add_conversation, request.caller.tenant, id, body, items)
        return Response(200, body)

    async def list(self, request: Request, dialect: Dialect) -> Response:
        """Lists the conversations, newest first. OpenAI's API does not have this endpoint."""
        page = Page(*Query(request).page())
        with _cursor("there is no conversation", page):
            listed = await self._run(Operations.list_conversations, request, page)
        return Response(200, list_body(listed))

    async def get(self, request: Request, dialect: Dialect) -> Response:
        """Returns a conversation."""
        return Response(200, await self._body(request))

    async def update(self, request: Request, dialect: Dialect) -> Response:
        """Updates the metadata of a conversation."""
        self._store()  # raises before the body is read
        given = (await self._bodies.read(request, ConversationUpdate)).metadata
        if given is UNSET:
            raise InvalidField.about("metadata", "is required")
        metadata = read_metadata(given)
        body = orjson.loads(await self._body(request))
        updated = orjson.dumps({**body, "metadata": metadata})
        is_there = await self._run(Operations.update_conversation, request, _id(request), updated)
        return Response(200, _found(updated if is_there else None, request))

    async def delete(self, request: Request, dialect: Dialect) -> Response:
        """Deletes a conversation and its items."""
        id = _id(request)
        is_deleted = await self._run(Operations.delete_conversation, request, id)
        body = DeletedConversation(id=id)
        return json_response(_found(body if is_deleted else None, request))

    async def add_items(self, request: Request, dialect: Dialect) -> Response:
        """Adds items to a conversation, and returns them."""
        store, tenant, id = self._store(), request.caller.tenant, _id(request)
        given = (await self._bodies.read(request, ItemsRequest)).items
        if given is None:
            raise InvalidField.about("items", "is required")
        ids = {item["id"] for item in given[:_MAX_ITEMS] if isinstance(item.get("id"), str)}
        taken = [
            item_id for item_id in ids if await store.run(Operations.find_item, tenant, id, item_id)
        ]
        items = await self._items(given, request, dialect, taken)
        is_there = await store.run(Operations.add_items, tenant, id, items)
        page = _found(ItemPage(items, has_more=False) if is_there else None, request)
        return Response(200, list_body(page))

    async def list_items(self, request: Request, dialect: Dialect) -> Response:
        """Lists the items of a conversation."""
        page = Page(*Query(request).page())
        with _cursor("the conversation has no item", page):
            items = await self._run(Operations.list_items, request, _id(request), page)
        return Response(200, list_body(_found(items, request)))

    async def get_item(self, request: Request, dialect: Dialect) -> Response:
        """Returns one item of a conversation."""
        Query(request)
        item_id = request.path_params["item_id"]
        body = await self._run(Operations.find_item, request, _id(request), item_id)
        return Response(200, found(body, "Item", item_id))

    async def delete_item(self, request: Request, dialect: Dialect) -> Response:
        """Deletes an item, and returns the conversation, as OpenAI's API does."""
        item_id = request.path_params["item_id"]
        body = await self._body(request)
        is_deleted = await self._run(Operations.delete_item, request, _id(request), item_id)
        return Response(200, found(body if is_deleted else None, "Item", item_id))

    async def _items(
        self,
        given: Sequence[Mapping[str, Any]],
        request: Request,
        dialect: Dialect,
        taken: Sequence[str] = (),
    ) -> Sequence[StoredItem]:
        """Returns the given items in their stored form. `taken` has the ids that the conversation
        already uses."""
        if len(given) > _MAX_ITEMS:
            raise InvalidField.about(
                "items", f"must have at most {_MAX_ITEMS} entries, not {len(given)}"
            )
        rules = ItemRules(dialect, item_id_factory(self._context.new_id, dialect))

        def read() -> Sequence[StoredItem]:
            items = read_items(given, "items", rules)
            if any(item["type"] == "item_reference" for item in items):
                raise InvalidField.about("items", "must not be references to items")
            return to_items(distinct(items, rules.new_id, taken))

        return await offload.run(read, item_cost(len(request.body)))

    async def _body(self, request: Request) -> bytes:
        body = await self._run(Operations.find_conversation, request, _id(request))
        return _found(body, request)

    async def _run(
        self,
        operation: Callable[Concatenate[Operations, str, P], T],
        request: Request,
        *args: P.args,
        **fields: P.kwargs,
    ) -> T:
        return await self._store().run(operation, request.caller.tenant, *args, **fields)

    def _store(self) -> StateStore:
        if self._state is None:
            raise RequestError("this server does not store conversations")
        return self._state.store


def _id(request: Request) -> str:
    return request.path_params["id"]


def _found(result: T | None, request: Request) -> T:
    return found(result, "Conversation", _id(request))
