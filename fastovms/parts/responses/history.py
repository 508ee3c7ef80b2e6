"""Reads the items of the model's input: those of a request, and earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec
import orjson

from fastovms.api import offload
from fastovms.api.context import ApiContext
from fastovms.api.dialect import Dialect
from fastovms.api.prompt import context_exceeded
from fastovms.errors import InvalidField
from fastovms.http.messages import Request
from fastovms.params import ModelInfo
from fastovms.parts.responses.ids import item_id_factory
from fastovms.parts.responses.input import (
    Item,
    ItemRules,
    distinct,
    given_documents,
    model_input,
    read_input,
)
from fastovms.parts.responses.request import ResponseFields, ResponsesRequest
from fastovms.parts.responses.socket import Turn
from fastovms.parts.responses.stored import not_found, previous_not_found
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import EarlierItems, ResponseProgress, StoredItem

_BYTES_PER_UNIT: Final = 32
"""The number of bytes of items whose reading or writing counts as one unit of work for
`offload`."""
_MAX_REFERENCES: Final = 256
"""The maximum references that are looked up at once, so that other store operations run in
between."""
_BYTES_PER_TOKEN: Final = 1024
_MIN_BYTES: Final = 4 * 1024 * 1024
"""The minimum limit on the bytes of earlier items that are read, whatever the context length. It
exceeds what fits, even for templates that omit reasoning."""
_BYTES_OF_IMAGES: Final = 64 * 1024 * 1024
"""The further bytes of items that may be read if items contain images, which are long texts."""


@dataclass(frozen=True, slots=True)
class History:
    """The model's whole input as items.

    Attributes:
        items: all items, oldest first.
        input: the items of this request, which are the last of `items`.
        size: the approximate bytes of all items.
        past: the earlier items, as stored.
    """

    items: Sequence[Item]
    input: Sequence[Item]
    size: int
    past: Sequence[StoredItem] = ()


def item_cost(num_bytes: int) -> int:
    """Returns the work, in units for `offload`, of reading or writing `num_bytes` bytes of
    items."""
    return num_bytes // _BYTES_PER_UNIT


async def read_history(
    context: ApiContext,
    request: Request,
    body: ResponsesRequest,
    model: ModelInfo,
    fields: ResponseFields,
    dialect: Dialect,
    store: StateStore | None,
) -> History:
    """Returns the items of a request and of the responses that it continues, with the texts of its
    documents. Raises RequestError if the input is malformed, or a response, conversation or item is
    unknown; StateFailed if stored items cannot be read. `store` is None if responses are not
    stored."""
    num_bytes, tenant = len(request.body), request.caller.tenant
    rules = ItemRules(dialect, item_id_factory(context.new_id, dialect))
    turn: Turn | None = request.turn
    unstored = None if turn is None else turn.unstored.find(fields.previous_id)
    has_past = fields.previous_id is not None or fields.conversation_id is not None
    if body.input is None and not has_past and not body.instructions:
        raise InvalidField.about("input", "is required")
    _check_count(body.input, fields, model)
    read = await offload.run(lambda: read_input(body.input, rules), item_cost(num_bytes))
    resolved = await _resolved(read, tenant, store)
    past: Sequence[StoredItem] = ()
    if unstored is not None:
        past = _earlier_items(_newest(unstored, _max_bytes(model)), fields, model)
    elif has_past:
        past = await _items_before(fields, tenant, _store(store, fields), model)
    size = sum(len(item.body) for item in past) + num_bytes

    def build() -> History:
        # In a conversation the input and earlier items are in one list, and need distinct ids.
        taken = (item.id for item in past) if fields.conversation_id is not None else ()
        given = distinct(resolved, rules.new_id, taken)
        earlier = [orjson.loads(item.body) for item in past]
        return History(model_input([*earlier, *given]), given, size, past)

    history = await offload.run(build, item_cost(size))
    items = [*history.items]
    find = partial(given_documents, items, len(items) - len(history.input))
    added = await context.read_documents(request, find, item_cost(size))
    return replace(history, items=items, size=size + added) if added else history


async def reload_history(
    fields: ResponseFields,
    model: ModelInfo,
    given: Sequence[StoredItem],
    stored_input: Sequence[msgspec.Raw] | None,
    tenant: str,
    store: StateStore,
) -> History:
    """Returns the history of a resumed request. Raises RequestError if the response or conversation
    that it continues no longer exists; StateFailed if stored items cannot be read.

    Args:
        given: the request's own items.
        stored_input: all items of the model's input when the request was queued; None = not stored:
            the earlier items are read in their present state.
    """
    past: Sequence[StoredItem] = ()
    if stored_input is None and (
        fields.previous_id is not None or fields.conversation_id is not None
    ):
        past = await _items_before(fields, tenant, store, model)
    bodies = [item.body for item in (*past, *given)]
    kept = [bytes(item) for item in stored_input or ()]
    size = sum(map(len, (*bodies, *kept)))

    def build() -> History:
        items = list(map(orjson.loads, bodies))
        whole = model_input(items) if stored_input is None else list(map(orjson.loads, kept))
        return History(whole, items[len(past) :], size)

    return await offload.run(build, item_cost(size))


def _check_count(
    given: str | Sequence[object] | None, fields: ResponseFields, model: ModelInfo
) -> None:
    """Raises InvalidField if there are more items than any context holds. Each item becomes Python
    objects, which slow down every run of the garbage collector."""
    if given is None or isinstance(given, str) or fields.truncates:
        return
    if len(given) > model.max_model_len:
        raise context_exceeded(f"the input has {len(given)} items", model, "input")


async def _items_before(
    fields: ResponseFields, tenant: str, store: StateStore, model: ModelInfo
) -> Sequence[StoredItem]:
    max_bytes = _max_bytes(model)
    if fields.conversation_id is not None:
        found = await store.run(
            Operations.conversation_context, tenant, fields.conversation_id, max_bytes=max_bytes
        )
        if found is None:
            raise not_found("Conversation", fields.conversation_id, param="conversation")
    else:
        assert fields.previous_id is not None
        found = await store.run(
            Operations.response_context, tenant, fields.previous_id, max_bytes=max_bytes
        )
        _check_chain(found, fields.previous_id)
        assert found is not None
    return _earlier_items(found, fields, model)


def _max_bytes(model: ModelInfo) -> int:
    images = _BYTES_OF_IMAGES if model.takes_images else 0
    return max(_MIN_BYTES, model.max_model_len * _BYTES_PER_TOKEN) + images


def _newest(items: Sequence[StoredItem], max_bytes: int) -> EarlierItems:
    """Returns the newest items with at most `max_bytes` bytes together."""
    size = 0
    for number, item in enumerate(reversed(items)):
        size += len(item.body)
        if size > max_bytes:
            return EarlierItems(items[len(items) - number :], is_whole=False)
    return EarlierItems(items)


def _earlier_items(
    found: EarlierItems, fields: ResponseFields, model: ModelInfo
) -> Sequence[StoredItem]:
    """Returns the earlier items. Raises InvalidField if required items are missing."""
    if not found.is_whole and not fields.truncates:
        name = "conversation" if fields.previous_id is None else "previous_response_id"
        reason = f"the earlier items have more than {_max_bytes(model)} bytes"
        raise context_exceeded(reason, model, name)
    return found.items


def _check_chain(found: EarlierItems | None, previous_id: str) -> None:
    missing_id = previous_id if found is None else found.missing_id
    if missing_id is not None:
        raise previous_not_found(missing_id)
    assert found is not None
    if found.progress is ResponseProgress.RUNNING:
        name = "previous_response_id"
        raise InvalidField(f"{name}: response '{previous_id}' is not finished yet", param=name)


async def _resolved(items: Sequence[Item], tenant: str, store: StateStore | None) -> Sequence[Item]:
    """Returns the items, with references replaced by the stored items."""
    ids = [item["id"] for item in items if item["type"] == "item_reference"]
    if not ids:
        return items
    found: dict[str, bytes] = {}
    for start in range(0, len(ids), _MAX_REFERENCES):
        some = ids[start : start + _MAX_REFERENCES]
        if store is not None:
            found.update(await store.run(Operations.find_items, tenant, some))
        for item_id in some:
            if item_id not in found:
                raise not_found("Item", item_id, param="input")
    return [
        orjson.loads(found[item["id"]]) if item["type"] == "item_reference" else item
        for item in items
    ]


def _store(store: StateStore | None, fields: ResponseFields) -> StateStore:
    if store is None:
        name = "conversation" if fields.previous_id is None else "previous_response_id"
        raise InvalidField.about(name, "cannot be used: this server does not store responses")
    return store
