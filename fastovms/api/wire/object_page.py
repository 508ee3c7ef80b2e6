"""Cuts a page from a list of objects, and writes it in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.state.store import Page


def list_page(objects: Sequence[dict[str, Any]], page: Page) -> bytes:
    """Returns the body of the answer.

    Args:
        objects: all of them, the oldest first, each with an `id`.

    Raises:
        InvalidField: `after` names none of them.
    """
    ordered = objects if page.ascending else objects[::-1]
    start = 0
    if page.after is not None:
        ids = [found["id"] for found in ordered]
        if page.after not in ids:
            raise InvalidField(f"after: there is no {show(page.after)} in the list", param="after")
        start = ids.index(page.after) + 1
    data = ordered[start : start + page.limit]
    return orjson.dumps(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": start + page.limit < len(ordered),
        }
    )
