"""Reads all items that a model is told for one request: those that came before, by
`previous_response_id` or `conversation`, and the input, with what an `item_reference` means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.prompts import context_exceeded
from fastovms.api.responses.input.hosted_items import Item
from fastovms.api.responses.input.input_items import ItemRules, distinct, read_input
from fastovms.api.responses.input.response_fields import ResponseFields
from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.stored.missing import not_found, previous_not_found
from fastovms.errors import InvalidField
from fastovms.params import ModelInfo
from fastovms.state.store import EarlierItems, ResponseProgress, StateStore, StoredItem

_BYTES_PER_UNIT: Final = 32
"""Bytes of items that are read, or written, in the time of one unit of `offload`."""

_MAX_REFERENCES: Final = 256
"""How many references are looked up at once: what others ask of the store comes between."""

_BYTES_PER_TOKEN: Final = 1024
_MIN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of earlier items that are read whatever the context: more than any has room for, also where
templates leave thoughts out."""

_BYTES_OF_IMAGES: Final = 64 * 1024 * 1024
"""How many more are read where items bring images, which are in them as text."""


@dataclass(frozen=True, slots=True)
class History:
    """All that a model is told.

    Attributes:
        items: all of them, the oldest first.
        input: those of this request, which are the last.
        size: about how many bytes all have.
    """

    items: Sequence[Item]
    input: Sequence[Item]
    size: int


def item_cost(num_bytes: int) -> int:
    """Returns what reading or writing so many bytes of items costs: the work for `offload`."""
    return num_bytes // _BYTES_PER_UNIT


async def read_history(
    body: ResponsesRequest,
    num_bytes: int,
    model: ModelInfo,
    fields: ResponseFields,
    rules: ItemRules,
    tenant: str,
    store: StateStore | None,
) -> History:
    """Reads the items of a request, and those that came before.

    Args:
        num_bytes: the length of the body.
        store: None = nothing is kept.

    Raises:
        RequestError: the input is malformed, or there is no such response, conversation or item.
        StateFailed: what came before cannot be read.
    """
    has_past = fields.previous_id is not None or fields.conversation_id is not None
    if body.input is None and not has_past and not body.instructions:
        raise InvalidField("input is required", param="input")
    _check_count(body.input, fields, model)
    read = await offload.run(lambda: read_input(body.input, rules), item_cost(num_bytes))
    resolved = await _resolved(read, tenant, store)
    past: Sequence[StoredItem] = ()
    if has_past:
        past = await _past(fields, tenant, _store(store, fields), model)
    size = sum(len(item.body) for item in past) + num_bytes

    def build() -> History:
        # Only in a conversation do ids of the input and of earlier items stand in one list.
        taken = (item.id for item in past) if fields.conversation_id is not None else ()
        given = distinct(resolved, rules.new_id, taken)
        earlier = [orjson.loads(item.body) for item in past]
        return History([*earlier, *given], given, size)

    return await offload.run(build, item_cost(size))


async def history_again(
    fields: ResponseFields,
    model: ModelInfo,
    given: Sequence[StoredItem],
    tenant: str,
    store: StateStore,
) -> History:
    """Reads the items that came before a request again, whose own items are kept.

    Raises:
        RequestError: the response or the conversation no longer exists.
        StateFailed: what came before cannot be read.
    """
    past: Sequence[StoredItem] = ()
    if fields.previous_id is not None or fields.conversation_id is not None:
        past = await _past(fields, tenant, store, model)
    size = sum(len(item.body) for item in (*past, *given))

    def build() -> History:
        items = [orjson.loads(item.body) for item in (*past, *given)]
        return History(items, items[len(past) :], size)

    return await offload.run(build, item_cost(size))


def _check_count(
    given: str | Sequence[object] | None, fields: ResponseFields, model: ModelInfo
) -> None:
    """Raises InvalidField for more items than any context holds: each would become objects that
    every collection of Python's garbage visits, while all other threads stand still."""
    if given is None or isinstance(given, str) or fields.truncates:
        return
    if len(given) > model.max_model_len:
        raise context_exceeded(f"the input has {len(given)} items", model, "input")


async def _past(
    fields: ResponseFields, tenant: str, store: StateStore, model: ModelInfo
) -> Sequence[StoredItem]:
    max_bytes = max(_MIN_BYTES, model.max_model_len * _BYTES_PER_TOKEN)
    if model.takes_images:
        max_bytes += _BYTES_OF_IMAGES
    if fields.conversation_id is not None:
        name = "conversation"
        found = await store.conversation_context(
            tenant, fields.conversation_id, max_bytes=max_bytes
        )
        if found is None:
            raise not_found("Conversation", fields.conversation_id, param=name)
    else:
        assert fields.previous_id is not None
        name = "previous_response_id"
        found = await store.response_context(tenant, fields.previous_id, max_bytes=max_bytes)
        _check_chain(found, fields.previous_id, name)
        assert found is not None
    if not found.is_whole and not fields.truncates:
        raise context_exceeded(f"what came before has more than {max_bytes} bytes", model, name)
    return found.items


def _check_chain(found: EarlierItems | None, previous_id: str, name: str) -> None:
    missing_id = previous_id if found is None else found.missing_id
    if missing_id is not None:
        raise previous_not_found(missing_id)
    assert found is not None
    if found.progress is ResponseProgress.RUNNING:
        raise InvalidField(f"{name}: response '{previous_id}' is not finished yet", param=name)


async def _resolved(items: Sequence[Item], tenant: str, store: StateStore | None) -> Sequence[Item]:
    """Returns items in place of references to them."""
    ids = [item["id"] for item in items if item["type"] == "item_reference"]
    if not ids:
        return items
    found: dict[str, bytes] = {}
    for start in range(0, len(ids), _MAX_REFERENCES):
        some = ids[start : start + _MAX_REFERENCES]
        if store is not None:
            found.update(await store.find_items(tenant, some))
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
        raise InvalidField(f"{name} cannot be used: this server keeps no responses", param=name)
    return store
