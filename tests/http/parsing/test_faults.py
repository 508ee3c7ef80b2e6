"""Faults of requests: the status and message of each."""

from __future__ import annotations

import httptools
import pytest

from fastovms.http.parsing.faults import large_body_fault, method_fault, parse_fault


@pytest.mark.parametrize(
    ("line", "status", "message", "answered"),
    [
        (None, 400, "malformed request line", True),
        (b"BREW /pot HTTP/1.1", 501, "unknown request method", True),
        (b"\r\nBREW", 501, "unknown request method", True),
        (b"G@T / HTTP/1.1", 400, "malformed request line", True),
        (b"", 400, "malformed request line", True),
        (b"A" * 300, 501, "unknown request method", True),
        (b"\x16\x03\x01\x02", 400, "TLS on a plaintext port", False),
    ],
)
def test_methods(line: bytes | None, status: int, message: str, answered: bool) -> None:
    fault = method_fault(line)
    assert (fault.status, fault.message, fault.answered) == (status, message, answered)


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505), (b"GET / HTTP/1.1\r\nA\r\n\r\n", 400)],
)
def test_what_the_parser_refuses(data: bytes, status: int) -> None:
    with pytest.raises(httptools.HttpParserError) as caught:
        httptools.HttpRequestParser(None).feed_data(data)
    assert parse_fault(caught.value).status == status


def test_a_large_body_is_told_its_limit() -> None:
    fault = large_body_fault(100)
    assert (fault.status, fault.message) == (413, "the body is larger than 100 bytes")
