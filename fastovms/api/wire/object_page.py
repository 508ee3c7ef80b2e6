"""Cuts a page from a list of records, and writes it in OpenAI's form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import orjson

from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.state.store import Page


class HasId(Protocol):
    """A record that is found by its id."""

    @property
    def id(self) -> str: ...


Record = TypeVar("Record", bound=HasId)


def list_page(
    records: Sequence[Record], page: Page, describe: Callable[[Record], dict[str, Any]]
) -> bytes:
    """Returns the body of the answer.

    Args:
        records: all of them, the oldest first.
        describe: returns the object of a record. Only those of the page are asked for: there may be
            thousands of others.

    Raises:
        InvalidField: `after` names none of them.
    """
    ordered = records if page.ascending else records[::-1]
    start = 0
    if page.after is not None:
        ids = [found.id for found in ordered]
        if page.after not in ids:
            raise InvalidField(f"after: there is no {show(page.after)} in the list", param="after")
        start = ids.index(page.after) + 1
    shown = ordered[start : start + page.limit]
    return orjson.dumps(
        {
            "object": "list",
            "data": [describe(record) for record in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": start + page.limit < len(ordered),
        }
    )
