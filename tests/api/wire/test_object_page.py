"""Pages of lists."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson
import pytest

from fastovms.api.wire.object_page import list_page
from fastovms.errors import InvalidField
from fastovms.state.store import Page


class Named(NamedTuple):
    id: str


RECORDS = [Named(id) for id in "abcd"]


def describe(record: Named) -> dict[str, Any]:
    return {"id": record.id}


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
    body = orjson.loads(list_page(RECORDS, page, describe))
    assert "".join(found["id"] for found in body["data"]) == ids
    assert (body["first_id"] or "", body["last_id"] or "") == (ids[:1], ids[-1:])
    assert body["has_more"] == has_more


def test_an_unknown_place() -> None:
    with pytest.raises(InvalidField, match="after"):
        list_page(RECORDS, Page(1, True, "x"), describe)


def test_nothing_is_written_but_the_page() -> None:
    asked = []
    list_page(RECORDS, Page(2, True, "a"), lambda record: asked.append(record.id) or {})
    assert asked == ["b", "c"]
