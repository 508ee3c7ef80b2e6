"""What is checked of a head: its target, and the fields that framing and routing rest on."""

from __future__ import annotations

import pytest

from fastovms.http.parsing.faults import Fault
from fastovms.http.parsing.head import (
    body_length,
    expects_continue,
    split_target,
    without_upgrade,
)
from fastovms.http.routing.messages import Headers, Request


@pytest.mark.parametrize(
    ("target", "method", "path", "query"),
    [
        ("/a?b=c?d", "GET", "/a", "b=c?d"),
        ("*", "OPTIONS", "*", ""),
        ("http://h", "GET", "/", ""),
        ("http://h", "OPTIONS", "*", ""),
        ("http://h?", "OPTIONS", "/", ""),
        ("HTTPS://[::1]:80/a?b", "GET", "/a", "b"),
    ],
)
def test_targets(target: str, method: str, path: str, query: str) -> None:
    assert split_target(target, method) == (path, query)


@pytest.mark.parametrize(
    "target", ["/a#b", "*", "a", "ftp://h/a", "http:///a", "http://a b/", "http://u@h/"]
)
def test_bad_targets(target: str) -> None:
    with pytest.raises(Fault) as caught:
        split_target(target, "GET")
    assert caught.value.status == 400


def head(*fields: tuple[str, str], version: str = "1.1", host: str | None = "h") -> Request:
    hosts = [] if host is None else [("host", host)]
    return Request("POST", "/", headers=Headers([*hosts, *fields]), http_version=version)


@pytest.mark.parametrize(
    ("request_head", "length"),
    [
        (head(), 0),
        (head(("content-length", "0" * 5000 + "7")), 7),
        (head(("transfer-encoding", "Chunked")), None),
        (head(("expect", "100-Continue"), ("content-length", "10")), 10),
        (head(version="1.0", host=None), 0),
        (head(host="[::1]:80"), 0),
    ],
)
def test_lengths(request_head: Request, length: int | None) -> None:
    assert body_length(request_head) == length


@pytest.mark.parametrize(
    ("request_head", "status", "message"),
    [
        (head(host=None), 400, "a Host field is required"),
        (head(host="a b"), 400, "invalid Host field"),
        (head(("host", "h")), 400, "more than one host field"),
        (head(("authorization", "a"), ("authorization", "b")), 400, "more than one authorization"),
        (head(("transfer-encoding", "gzip, chunked")), 501, "the only transfer coding"),
        (head(("transfer-encoding", "chunked"), version="1.0"), 400, "not part of HTTP/1.0"),
        (head(("expect", "x")), 417, "the only expectation"),
    ],
)
def test_bad_fields(request_head: Request, status: int, message: str) -> None:
    with pytest.raises(Fault, match=message) as caught:
        body_length(request_head)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("request_head", "length", "expected"),
    [
        (head(("expect", "100-continue")), 5, True),
        (head(("expect", "100-continue")), None, True),
        (head(("expect", "100-continue")), 0, False),
        (head(("expect", "100-continue"), version="1.0"), 5, False),
        (head(), 5, False),
    ],
)
def test_who_waits_for_continue(request_head: Request, length: int | None, expected: bool) -> None:
    assert expects_continue(request_head, length) is expected


def test_a_head_without_its_upgrade() -> None:
    fields = [(b"Upgrade", b"h2c"), (b"Connection", b"close, Upgrade,,x"), (b"A", b"b")]
    assert without_upgrade(b"GET", b"/", b"1.1", fields) == (
        b"GET / HTTP/1.1\r\nConnection: close, x\r\nA: b\r\n\r\n"
    )
