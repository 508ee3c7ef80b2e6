"""The routes of responses and conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS
from fastovms.api.endpoint import PAGE_QUERY, ApiHandler, Operation, Route, endpoint
from fastovms.parts.responses.background import ResponsesState
from fastovms.parts.responses.compaction import Compaction
from fastovms.parts.responses.conversations import (
    ConversationHandlers,
    ConversationList,
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    StoredResponses,
)
from fastovms.parts.responses.create import InputTokens, Responses
from fastovms.parts.responses.request import (
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
    ResponsesRequest,
)
from fastovms.parts.responses.socket import websocket_handler


def endpoints(context: ApiContext, state: ResponsesState | None) -> Iterator[Route]:
    """Yields the routes of responses and conversations. `state` is None if nothing is stored."""
    responses = Responses(context, state)
    stored = StoredResponses(state)
    conversations = ConversationHandlers(context, state)

    def routes(
        name: str, handler: ApiHandler, summary: str, answer: Any, **more: Any
    ) -> Iterator[Route]:
        method, _, path = name.partition(" ")
        section = "Responses" if path.startswith("/responses") else "Conversations"
        operation = Operation(summary, answer, section, **more)
        for dialect in DIALECTS:
            for prefix in dialect.prefixes:
                yield Route(method, f"{prefix}{path}", endpoint(handler, dialect), operation)

    yield from routes(
        "POST /responses",
        responses.create,
        "Makes a response of text, reasoning and calls as items: whole, as a stream or in the "
        "background.",
        "ResponseObject",
        body=ResponsesRequest,
        events="RESPONSE_EVENT",
        examples="responses",
    )
    upgrade = Operation(
        "Opens a WebSocket connection on which messages create responses. Without one it is "
        "refused.",
        section="Responses",
        upgrades=True,
    )
    for dialect in DIALECTS:
        socket = websocket_handler(endpoint(responses.create, dialect), context.bodies)
        for prefix in dialect.prefixes:
            yield Route("GET", f"{prefix}/responses", socket, upgrade)
    yield from routes(
        "POST /responses/input_tokens",
        responses.count_input,
        "Counts the tokens that the request's prompt would have.",
        InputTokens,
        body=ResponsesRequest,
        examples="tokens of a response",
    )
    yield from routes(
        "POST /responses/compact",
        Compaction(context, state),
        "Has the model summarize a conversation, and returns the newest messages to it with the "
        "summary, as the input of what follows.",
        "CompactedResponse",
        body=ResponsesRequest,
        examples="compaction",
    )
    yield from routes(
        "GET /responses/{id}",
        stored.get,
        "Returns a stored response; `?stream=true` follows one that runs in the background, "
        "`&starting_after=N` from any event.",
        "ResponseObject",
        events="RESPONSE_EVENT",
        query={"stream": bool, "starting_after": int},
    )
    yield from routes(
        "DELETE /responses/{id}",
        stored.delete,
        "Deletes a stored response, and cancels it first if it runs.",
        DeletedResponse,
    )
    yield from routes(
        "POST /responses/{id}/cancel",
        stored.cancel,
        "Cancels a response that runs in the background.",
        "ResponseObject",
    )
    yield from routes(
        "GET /responses/{id}/input_items",
        stored.list_input,
        "Lists the input of a stored response.",
        "ItemList",
        query=PAGE_QUERY,
    )
    yield from routes(
        "POST /conversations",
        conversations.create,
        "Makes a conversation, with its first items if some are given.",
        ConversationObject,
        body=ConversationRequest,
        examples="conversations",
    )
    yield from routes(
        "GET /conversations",
        conversations.list,
        "Lists the conversations, the newest first.",
        ConversationList,
        query=PAGE_QUERY,
    )
    yield from routes(
        "GET /conversations/{id}",
        conversations.get,
        "Returns a conversation, without its items.",
        ConversationObject,
        examples="conversation",
    )
    yield from routes(
        "POST /conversations/{id}",
        conversations.update,
        "Changes the metadata of a conversation.",
        ConversationObject,
        body=ConversationUpdate,
        required=("metadata",),
        examples="metadata of a conversation",
    )
    yield from routes(
        "DELETE /conversations/{id}",
        conversations.delete,
        "Deletes a conversation.",
        DeletedConversation,
    )
    yield from routes(
        "GET /conversations/{id}/items",
        conversations.list_items,
        "Lists the items of a conversation.",
        "ItemList",
        query=PAGE_QUERY,
    )
    yield from routes(
        "POST /conversations/{id}/items",
        conversations.add_items,
        "Adds items to a conversation.",
        "ItemList",
        body=ItemsRequest,
        required=("items",),
        examples="items",
    )
    yield from routes(
        "GET /conversations/{id}/items/{item_id}",
        conversations.get_item,
        "Returns one item of a conversation.",
        "ConversationItem",
    )
    yield from routes(
        "DELETE /conversations/{id}/items/{item_id}",
        conversations.delete_item,
        "Deletes one item of a conversation.",
        ConversationObject,
    )
