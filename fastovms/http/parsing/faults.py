"""Declares the faults of requests that cannot be read on, each with the status and message of its
answer."""

from __future__ import annotations

import re

import httptools

from fastovms.http.routing.messages import HeaderPairs, Request

_METHOD_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+( |$)")


class Fault(Exception):
    """A request that cannot be served; the connection ends after the answer.

    Attributes:
        request: the one at fault, as far as it was read.
        answered: False = the connection is closed without an answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        request: Request | None = None,
        headers: HeaderPairs = (),
        answered: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.request = request
        self.headers = headers
        self.answered = answered


class InputRefused(Exception):
    """Raised by a sink that has taken care of the answer and wants no more of the input."""


def large_body_fault(limit: int) -> Fault:
    """Returns the fault of a body, announced or read, of more than `limit` bytes (RFC 9110
    15.5.14)."""
    return Fault(413, f"the body is larger than {limit} bytes")


def parse_fault(error: httptools.HttpParserError) -> Fault:
    """Returns what the parser's refusal means to the client."""
    if str(error).startswith("Pause on PRI"):
        return Fault(505, "HTTP/2 is not supported here")
    return Fault(400, f"malformed request: {error}")


def method_fault(line: bytes | None) -> Fault:
    """Returns the fault of a method that the parser does not know, or of no method at all (RFC 9110
    9.1).

    Args:
        line: the beginning of the request line, or None when nobody knows where that is.
    """
    if line is None:
        return Fault(400, "malformed request line")
    if line[:2] == b"\x16\x03":
        return Fault(400, "TLS on a plaintext port", answered=False)
    if _METHOD_TOKEN.match(line[:256].lstrip(b"\r\n")):
        return Fault(501, "unknown request method")
    return Fault(400, "malformed request line")
