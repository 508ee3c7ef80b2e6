"""Pages of lists."""

from __future__ import annotations

import orjson
import pytest

from fastovms.api.responses.stored.list_page import list_body
from fastovms.state.store import ItemPage, StoredItem


@pytest.mark.parametrize(("ids", "has_more"), [([], False), (["a"], True), (["a", "b"], False)])
def test_a_page_tells_its_ends(ids: list[str], has_more: bool) -> None:
    items = [StoredItem(id, b'{"id":"%b"}' % id.encode()) for id in ids]
    assert orjson.loads(list_body(ItemPage(items, has_more=has_more))) == {
        "object": "list",
        "data": [{"id": id} for id in ids],
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }
