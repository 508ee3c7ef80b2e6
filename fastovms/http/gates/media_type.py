"""Refuses bodies in a form that no handler reads, compressed ones too (RFC 9110 8.3, 8.4): 415."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from fastovms.http.routing.messages import ErrorRenderer, Request, Response

FORM_TYPES = frozenset(("application/x-www-form-urlencoded", "multipart/form-data", "text/plain"))
"""The types that pages may send anywhere without asking first
(https://fetch.spec.whatwg.org/#cors-safelisted-request-header)."""

_UNASKED = "application/x-www-form-urlencoded"
"""The type that curl and urllib name for any body unless told otherwise, so that it means
nothing."""


class JsonOnly:
    """A check for routes that take JSON. A request that names no type passes: its body is read as
    JSON.

    Args:
        upload_routes: patterns of routes that take something else by POST, and check that
            themselves.
    """

    def __init__(self, render_error: ErrorRenderer, upload_routes: Collection[str] = ()) -> None:
        self._render_error = render_error
        self._upload_routes = frozenset(upload_routes)

    def __call__(self, request: Request) -> Response | None:
        if request.method in ("GET", "HEAD", "DELETE"):
            return None
        fields = request.headers.by_name
        coding = fields.get("content-encoding")
        if coding is not None and coding.lower() != "identity":
            response = self._render_error(
                request, 415, f"Content-Encoding {coding!r} is not supported"
            )
            # RFC 9110 15.5.16: says which coding would be.
            accepted = (("Accept-Encoding", "identity"),)
            return dataclasses.replace(response, headers=response.headers + accepted)
        given = fields.get("content-type")
        if given is None:
            return None
        kind = essence(given)
        if request.route in self._upload_routes:
            return None
        if kind in ("application/json", _UNASKED) or (
            kind.startswith("application/") and kind.endswith("+json")
        ):
            return None
        return self._render_error(
            request, 415, f"Content-Type {given!r} is not supported, only application/json"
        )


def essence(content_type: str) -> str:
    """Returns type and subtype, without parameters, in lower case (RFC 9110 8.3.1)."""
    return content_type.partition(";")[0].strip().lower()
