"""Keeps pages of other sites from using this server through the browsers of those who may.

A browser sends some requests across origins without asking first: forms, `text/plain`, images. Its
`Origin` and `Sec-Fetch-*` fields, which no script can set, say which page they come from
(https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata/). Clients that
are no browsers send none of them, and nothing is checked.
"""

from __future__ import annotations

from fastovms.http.gates.cors import CorsPolicy
from fastovms.http.gates.media_type import FORM_TYPES, essence
from fastovms.http.routing.messages import ErrorRenderer, Request, Response


class OriginCheck:
    """A check of every request, preflights included.

    Args:
        policy: says which other origins may ask.
        tls: whether clients speak TLS to this server itself. Where they do not, a proxy in front
            may.
    """

    def __init__(self, policy: CorsPolicy, render_error: ErrorRenderer, *, tls: bool) -> None:
        self._policy = policy
        self._render_error = render_error
        self._own_schemes = ("https://",) if tls else ("http://", "https://")

    def __call__(self, request: Request) -> Response | None:
        fields = request.headers.by_name
        origin, site = fields.get("origin"), fields.get("sec-fetch-site")
        if origin is None and site is None:
            return None
        if site == "cross-site" and essence(fields.get("content-type", "")) in FORM_TYPES:
            return self._refuse(request, "a form of another site is not taken, only JSON is")
        if origin is None:
            if site in _OWN_SITES or self._policy.any_origin or _is_followed_link(request):
                return None
            return self._refuse(
                request, "pages of other sites may not embed what this server answers"
            )
        if site == "same-origin" or self._policy.allows(origin) or self._is_own(request, origin):
            return None
        return self._refuse(
            request,
            f"pages of {origin!r} may not use this server: --allowed-origins names those that may",
        )

    def _is_own(self, request: Request, origin: str) -> bool:
        host = request.headers.by_name.get("host", "")
        return any(origin == scheme + host for scheme in self._own_schemes)

    def _refuse(self, request: Request, message: str) -> Response:
        return self._render_error(request, 403, message)


_OWN_SITES = ("same-origin", "none")
"""The values of Sec-Fetch-Site of a page of this server, and of what a person typed or had
bookmarked. "same-site" is not among them: it may be another port of the same machine, with another
server behind it."""


def _is_followed_link(request: Request) -> bool:
    """Returns whether a whole browser window is about to show the answer, which no other page then
    sees."""
    fields = request.headers.by_name
    return (
        request.method == "GET"
        and fields.get("sec-fetch-mode") == "navigate"
        and fields.get("sec-fetch-dest") == "document"
    )
