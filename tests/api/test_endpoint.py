"""Tests of `fastovms/api/endpoint.py`."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.endpoint import (
    MAX_ID,
    ApiPaths,
    Page,
    UrlQuery,
    check_id,
    list_page,
    read_metadata,
    warning_headers,
)
from fastovms.api.prepare import ignored_parts_warning
from fastovms.errors import InvalidField, RequestError
from fastovms.http.messages import Request
from tests.fakes import make_request

# Query parameters.


def query(text: str) -> UrlQuery:
    return UrlQuery(Request("GET", "/", text))


def test_query_values_are_read_by_type() -> None:
    given = query("a=1&a=2&b[]=x&b[]=y&limit=200&order=asc&after=z&c=true")
    assert (given.text("a"), given.text("z")) == ("2", None)
    assert list(given.texts("b")) == ["x", "y"]
    assert list(given.texts("z")) == []
    assert given.flag("c")
    assert given.page(most=200) == Page(200, True, "z")
    assert query("").page(usual=7) == Page(7, False, None)


@pytest.mark.parametrize("text", ["limit=0", "limit=101", "limit=x", "order=up"])
def test_invalid_page_parameters_are_refused(text: str) -> None:
    with pytest.raises(InvalidField):
        query(text).page()


def test_more_than_100_query_parameters_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 100"):
        query("&".join(f"a{number}=" for number in range(101)))


# Paths of a slightly wrong base URL.


PATHS = ApiPaths()
KNOWN = {"/v1/chat/completions", "/v1/models", "/v3/chat/completions"}


@pytest.mark.parametrize(
    ("path", "tidy"),
    [
        ("/v1/models", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("/v1//models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/v1/models", "/v1/models"),
        ("///v1//v1/v1///models//", "/v1/models"),
        ("/models/", "/models"),
        ("//models", "/models"),
        ("/v3/v3/chat/completions/", "/v3/chat/completions"),
        ("/v3/v1/chat/completions", "/v3/v1/chat/completions"),
        ("/v3/v1/v1/chat/completions", "/v3/v1/chat/completions"),
        ("/v3/v3/v1/chat/completions", "/v3/v1/chat/completions"),
        ("/v1/models/org/name", "/v1/models/org/name"),
        ("/v1/models/v1/v1", "/v1/models/v1/v1"),
        ("/v1/models/a%2F%2Fb", "/v1/models/a%2F%2Fb"),
        ("/v1/models/%2F", "/v1/models/%2F"),
    ],
)
def test_paths_of_the_dialects(path: str, tidy: str):
    assert PATHS.tidy(path) == tidy


@pytest.mark.parametrize(
    "path",
    ["", "*", "/", "//", "/health/", "//health", "//metrics", "/v2/models/m/", "//v2", "/x//v1"],
)
def test_other_paths_stay_as_they_are(path: str):
    assert PATHS.tidy(path) == path


@pytest.mark.slow
@given(st.lists(st.sampled_from(["v1", "v3", "models", "a", "", "%2F"]), max_size=8))
def test_a_second_look_finds_no_more(segments: list[str]):
    tidy = PATHS.tidy("/" + "/".join(segments))
    assert PATHS.tidy(tidy) == tidy


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/chat/completions/", "/v1/chat/completions"),
        ("//chat/completions", "/v1/chat/completions"),
        ("/api/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/chat/completions", "/v1/chat/completions"),
        ("/api/v0/models", "/v1/models"),
        ("/nowhere", None),
        ("/a/b/c/chat/completions", None),
        ("/", None),
    ],
)
def test_advice_names_the_route_of_a_misplaced_path(path: str, meant: str | None):
    advice = PATHS.advice(path, "", KNOWN.__contains__)
    assert advice == (f"; did you mean {meant}? The base URL ends in /v1" if meant else "")


def test_advice_behind_a_proxy():
    advice = PATHS.advice("/chat/completions", "/llm", KNOWN.__contains__)
    assert advice == "; did you mean /llm/v1/chat/completions? The base URL ends in /llm/v1"


# Pages of lists.


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
def test_list_page_has_the_requested_records_and_has_more(page, ids, has_more) -> None:
    body = orjson.loads(msgspec.json.encode(list_page(RECORDS, page, describe)))
    assert "".join(found["id"] for found in body["data"]) == ids
    assert (body["first_id"] or "", body["last_id"] or "") == (ids[:1], ids[-1:])
    assert body["has_more"] == has_more


# The accepted `metadata`; the refused values are also in the tests of responses.


def test_metadata_beyond_its_limits_is_refused() -> None:
    assert read_metadata(None) == {}
    assert len(read_metadata({str(number): "x" * 512 for number in range(16)})) == 16
    for metadata in ({"a": 1}, {"a": "x" * 513}, {"a" * 65: ""}, {str(n): "" for n in range(17)}):
        with pytest.raises(InvalidField, match="metadata"):
            read_metadata(metadata)


# Ids that clients choose.


@pytest.mark.parametrize("text", ["", "a b", "é", "\x7f", "a\n", "x" * (MAX_ID + 1)])
def test_id_that_no_header_can_hold_is_refused(text: str) -> None:
    with pytest.raises(InvalidField, match="must have 1 to 256 visible ASCII") as caught:
        check_id(text, "items[0].id")
    assert caught.value.param == "items[0].id"
    assert len(caught.value.message) < 400


# Ignored parts of a request are named in a header and in the log.


@pytest.mark.parametrize(
    ("warnings", "header"),
    [
        ([], None),
        (ignored_parts_warning(["tools[0] of type x"]),
         '299 - "passed over, as this server does not have it: tools[0] of type x"'),
        (["a is not done", 'nor "b\\"'], "299 - \"a is not done; nor 'b'\""),
        (["x" * 2000], f'299 - "{"x" * 1000}"'),
    ],
)  # fmt: skip
def test_warnings_are_joined_in_a_header_and_logged(warnings, header, caplog):
    with caplog.at_level(logging.WARNING):
        headers = warning_headers(warnings, make_request("/v1/x"))
    assert dict(headers).get("Warning") == header
    assert [record.levelname for record in caplog.records] == ["WARNING"] * len(headers)
    for record in caplog.records:
        assert record.getMessage().startswith(f"request req-1: {warnings[0][:100]}")
