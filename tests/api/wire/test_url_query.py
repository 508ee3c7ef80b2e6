"""Query parameters."""

from __future__ import annotations

import pytest

from fastovms.api.wire.url_query import UrlQuery
from fastovms.errors import InvalidField, RequestError
from fastovms.http.routing.messages import Request
from fastovms.state.store import Page


def query(text: str) -> UrlQuery:
    return UrlQuery(Request("GET", "/", text))


def test_values() -> None:
    given = query("a=1&a=2&b[]=x&b[]=y&limit=200&order=asc&after=z&c=true")
    assert (given.text("a"), given.text("z")) == ("2", None)
    assert list(given.texts("b")) == ["x", "y"]
    assert list(given.texts("z")) == []
    assert given.flag("c")
    assert given.page(most=200) == Page(200, True, "z")
    assert query("").page(usual=7) == Page(7, False, None)


@pytest.mark.parametrize("text", ["limit=0", "limit=101", "limit=x", "order=up"])
def test_wrong_pages(text: str) -> None:
    with pytest.raises(InvalidField):
        query(text).page()


def test_too_many() -> None:
    with pytest.raises(RequestError, match="at most 100"):
        query("&".join(f"a{number}=" for number in range(101)))
