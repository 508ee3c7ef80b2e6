"""Transactions of one operation, in short."""

from __future__ import annotations

from fastovms.state.sqlite.database import Database
from fastovms.state.store import EarlierItems, FoundResponse, StoredItem, StoredResponse


def items(*ids: str) -> list[StoredItem]:
    return [StoredItem(id, f'{{"id":"{id}"}}'.encode()) for id in ids]


def do(database: Database, operation):
    [(result, error)] = database.transact([operation])
    if error is not None:
        raise error
    return result


def add(database: Database, id: str, previous: str | None = None, *, tenant="t", **fields):
    stored = response(id, previous, **fields)
    do(database, lambda state: state.add_response(tenant, stored, None))
    return stored


def response(id: str, previous: str | None = None, **fields) -> StoredResponse:
    return StoredResponse(
        id,
        b"{}",
        input=items(f"{id}-in"),
        output=items(f"{id}-out"),
        previous_id=previous,
        **fields,
    )


def context(database: Database, id: str, max_bytes: int = 10**6, tenant="t") -> EarlierItems | None:
    return do(database, lambda state: state.response_context(tenant, id, max_bytes))


def ids(found) -> list[str]:
    return [item.id for item in found.items]


def find(database: Database, id: str, tenant="t") -> FoundResponse | None:
    return do(database, lambda state: state.find_response(tenant, id))
