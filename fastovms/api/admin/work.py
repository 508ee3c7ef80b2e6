"""Lists what runs on the server for every API key, and cancels it, for operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple

import orjson

from fastovms.api.admin.models import operator_refusal
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.object_page import list_page
from fastovms.api.wire.url_query import UrlQuery
from fastovms.errors import NotFound
from fastovms.http.routing.messages import Request, Response

KEY_LENGTH: Final = 16
"""How many hexadecimal digits of a key's digest tell the key apart from others."""

_MOST: Final = 1000
"""How many pieces of work one page may have."""


class WorkItem(NamedTuple):
    """A request, a background response or a batch that has not ended.

    Attributes:
        tenant: the digest of the key that started it; "" = none was needed.
        detail: the path of a request, the model of a response, the endpoint of a batch.
        created_at: Unix time; None = another server knows it.
        cancel: ends it.
    """

    kind: Literal["request", "response", "batch"]
    id: str
    tenant: str
    status: str
    detail: str
    created_at: int | None
    cancel: Callable[[], Awaitable[object]]


WorkSource = Callable[[], Awaitable[Sequence[WorkItem]]]
"""Returns all work of one kind, the oldest first."""


class WorkRoutes:
    """The handlers of `/v1/work`. Both take `kind` and `key` in the query to narrow the list."""

    def __init__(self, sources: Sequence[WorkSource]) -> None:
        self._sources = sources

    async def show(self, request: Request, dialect: Dialect) -> Response:
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        query = UrlQuery(request)
        found = await self._find(query)
        return Response(200, list_page(found, query.page(usual=100, most=_MOST), _describe))

    async def cancel(self, request: Request, dialect: Dialect) -> Response:
        """Cancels all work with an id. Clients may choose ids, so that several keys may use one.

        Raises:
            NotFound: no work that has not ended has the id.
        """
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        id = request.path_params["id"]
        found = [item for item in await self._find(UrlQuery(request)) if item.id == id]
        if not found:
            raise NotFound(f"no work with the id {show(id)} runs", param="id")
        for item in found:
            await item.cancel()
        data = [_describe(item) | {"status": "cancelled"} for item in found]
        return Response(200, orjson.dumps({"object": "list", "data": data}))

    async def _find(self, query: UrlQuery) -> list[WorkItem]:
        kind, key = query.text("kind"), query.text("key")
        return [
            item
            for source in self._sources
            for item in await source()
            if kind in (None, item.kind) and item.tenant.startswith(key or "")
        ]


def _describe(item: WorkItem) -> dict[str, object]:
    return {
        "object": "work",
        "kind": item.kind,
        "id": item.id,
        "key": item.tenant[:KEY_LENGTH] or None,
        "status": item.status,
        "detail": item.detail,
        "created_at": item.created_at,
    }
