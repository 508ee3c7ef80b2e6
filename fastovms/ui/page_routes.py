"""Answers `GET /` and the files of the page: compressed where the browser takes that, and not again
where it has them."""

from __future__ import annotations

from typing import Final

from fastovms.api.wire.error_responses import render_error
from fastovms.http.routing.messages import HeaderPairs, Request, Response
from fastovms.http.routing.router import Router
from fastovms.ui.page_files import FOLDER, PageFile, PageFiles

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
"""The page loads, runs and asks nothing but what this server sends, is shown in nobody's frame, and
no text becomes HTML unless DOMPurify has been over it (https://www.w3.org/TR/CSP3/,
https://www.w3.org/TR/trusted-types/)."""

_FIELDS: Final[HeaderPairs] = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Vary", "Accept-Encoding"),
)
_ASK_AGAIN: Final = "no-cache"
_FOR_EVER: Final = "public, max-age=31536000, immutable"


class PageRoutes:
    """The handlers."""

    def __init__(self, files: PageFiles) -> None:
        self._files = files

    def index(self, request: Request) -> Response:
        return _answer(request, self._files.index, _ASK_AGAIN)

    def file(self, request: Request) -> Response:
        version, name = (request.path_params[part] for part in ("version", "name"))
        file = self._files.others.get(name) if version == self._files.version else None
        if file is None:
            return render_error(request, 404, f"no such file of the page: {request.path}")
        return _answer(request, file, _FOR_EVER)


def add_page_routes(router: Router, files: PageFiles) -> None:
    """Adds the page and its files."""
    routes = PageRoutes(files)
    router.add("GET", "/", routes.index)
    router.add("GET", f"/{FOLDER}/{{version}}/{{name:path}}", routes.file)


def _answer(request: Request, file: PageFile, caching: str) -> Response:
    takes_gzip = _takes_gzip(request.headers.get("accept-encoding", "") or "")
    # Each form of a file has a tag of its own (RFC 9110 8.8.3.3).
    tag = f'"{file.digest}-gzip"' if takes_gzip else f'"{file.digest}"'
    fields = (*_FIELDS, ("ETag", tag), ("Cache-Control", caching))
    if _has(request.headers.get("if-none-match", "") or "", tag):
        return Response(304, headers=fields)
    if takes_gzip:
        fields = (*fields, ("Content-Encoding", "gzip"))
    body = file.zipped if takes_gzip else file.body
    return Response(200, body, file.content_type, fields)


def _takes_gzip(accepted: str) -> bool:
    """Reads Accept-Encoding (RFC 9110 12.5.3); without it a file goes out as it is."""
    for coding in accepted.lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name in ("gzip", "*"):
            weight = next((p[2:] for p in parameters if p.startswith("q=")), "1")
            return weight.strip("0.") != ""
    return False


def _has(tags: str, tag: str) -> bool:
    """Returns whether If-None-Match (RFC 9110 13.1.2) names a tag; weak ones count."""
    named = (part.strip().removeprefix("W/") for part in tags.split(","))
    return any(one in ("*", tag) for one in named)
