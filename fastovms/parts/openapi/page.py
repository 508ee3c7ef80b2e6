"""The routes of the OpenAPI document and of the page `/docs` that shows it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any, Final

import orjson

from fastovms.api.admin import DOCS_PATHS
from fastovms.api.endpoint import Operation
from fastovms.http.messages import HeaderPairs, Request, Response
from fastovms.http.routing import Router

_INLINE: Final = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


class DocsRoutes:
    """The handlers of the document and the page, which are built at the first request. `build`
    makes the document."""

    def __init__(self, build: Callable[[], dict[str, Any]]) -> None:
        self._build = build
        self._document: asyncio.Task[Response] | None = None
        self._page: Response | None = None

    async def document(self, request: Request) -> Response:
        if self._document is None:
            self._document = asyncio.ensure_future(asyncio.to_thread(self._encoded))
        # Shielded: others may wait for it when this client has gone.
        return await asyncio.shield(self._document)

    def page(self, request: Request) -> Response:
        if self._page is None:
            html = files(__package__).joinpath("page.html").read_text()
            self._page = Response(200, html.encode(), "text/html; charset=utf-8", _policy(html))
        return self._page

    def _encoded(self) -> Response:
        return Response(200, orjson.dumps(self._build()))


def add_docs_routes(router: Router, docs: DocsRoutes) -> None:
    """Adds the routes of `DOCS_PATHS`."""
    document, page = DOCS_PATHS
    operation = partial(Operation, section="Documentation")
    of_document = operation("Returns this description, as OpenAPI 3.1.", dict)
    of_page = operation("Shows it to people, without a network.", str, media_type="text/html")
    router.add("GET", document, docs.document, of_document)
    router.add("GET", page, docs.page, of_page)


def _policy(html: str) -> HeaderPairs:
    """Returns the Content-Security-Policy header: browsers load nothing from other hosts and run
    only the page's own script (https://www.w3.org/TR/CSP3/)."""
    hashes = {name: _hash(content) for name, content in _INLINE.findall(html)}
    policy = (
        f"default-src 'none'; script-src '{hashes['script']}'; style-src '{hashes['style']}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
    )


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
