"""Pages of lists."""

from __future__ import annotations

import orjson
import pytest

from fastovms.api.wire.object_page import list_page
from fastovms.errors import InvalidField
from fastovms.state.store import Page

OBJECTS = [{"id": id} for id in "abcd"]


@pytest.mark.parametrize(
    ("page", "ids", "has_more"),
    [
        (Page(10, True, None), "abcd", False),
        (Page(3, False, None), "dcb", True),
        (Page(3, False, "b"), "a", False),
        (Page(2, True, "b"), "cd", False),
        (Page(2, True, "d"), "", False),
    ],
)
def test_pages(page, ids, has_more) -> None:
    body = orjson.loads(list_page(OBJECTS, page))
    assert "".join(found["id"] for found in body["data"]) == ids
    assert (body["first_id"] or "", body["last_id"] or "") == (ids[:1], ids[-1:])
    assert body["has_more"] == has_more


def test_an_unknown_place() -> None:
    with pytest.raises(InvalidField, match="after"):
        list_page(OBJECTS, Page(1, True, "x"))
