"""Writes a page of a list: its items, and whether there are more."""

from __future__ import annotations

import orjson

from fastovms.state.store import ItemPage


def list_body(page: ItemPage) -> bytes:
    """Returns the body of the answer."""
    ids = [item.id for item in page.items]
    rest = {
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": page.has_more,
    }
    data = b",".join(item.body for item in page.items)
    return b'{"object":"list","data":[' + data + b"]," + orjson.dumps(rest)[1:]
