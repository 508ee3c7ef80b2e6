"""The routes of the OpenAPI document and of the page `/docs` that shows it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.resources import files
from typing import Any, Final

import orjson

from fastovms.api.admin import DOCS_PATHS
from fastovms.api.endpoint import Operation, Route
from fastovms.api.served import ServedModels
from fastovms.http.messages import HeaderPairs, Request, Response
from fastovms.http.routing import Router
from fastovms.parts.openapi.document import openapi_document

_INLINE: Final = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


class DocsRoutes:
    """The handlers of the document and of the page, which are built at the first request.

    Args:
        build: returns the document.
        load_all: called once before `build`.
    """

    def __init__(
        self, build: Callable[[], dict[str, Any]], load_all: Callable[[], Awaitable[None]]
    ) -> None:
        self._build = build
        self._load_all = load_all
        self._document: asyncio.Task[Response] | None = None
        self._page: Response | None = None

    async def document(self, request: Request) -> Response:
        """Returns the OpenAPI document."""
        if self._document is None:
            self._document = asyncio.ensure_future(self._make())
        # Shielded, because other requests may wait for the page if this client disconnects.
        return await asyncio.shield(self._document)

    def page(self, request: Request) -> Response:
        """Returns the page that shows the document."""
        if self._page is None:
            html = files(__package__).joinpath("page.html").read_text()
            self._page = Response(200, html.encode(), "text/html; charset=utf-8", _policy(html))
        return self._page

    async def _make(self) -> Response:
        await self._load_all()
        return await asyncio.to_thread(lambda: Response(200, orjson.dumps(self._build())))


def endpoints(
    router: Router,
    models: ServedModels,
    load_all: Callable[[], Awaitable[None]],
    root_path: str = "",
    needs_key: bool = False,
) -> Iterator[Route]:
    """Yields the routes of `DOCS_PATHS`.

    Args:
        load_all: loads the optional parts whose routes have not been used yet, so that the document
            describes them.
        needs_key: whether an API key is required; the document then does not reveal model names.
    """

    def build() -> dict[str, object]:
        known = models.known
        return openapi_document(
            router.operations,
            model="MODEL" if needs_key or not known else known[0].name,
            root_path=root_path,
            needs_key=needs_key,
        )

    docs = DocsRoutes(build, load_all)
    document, page = DOCS_PATHS
    operation = partial(Operation, section="Documentation")
    of_document = operation("Returns this description, as OpenAPI 3.1.", dict)
    of_page = operation("Shows it to people, without a network.", str, media_type="text/html")
    yield Route("GET", document, docs.document, of_document)
    yield Route("GET", page, docs.page, of_page)


def _policy(html: str) -> HeaderPairs:
    """Returns a Content-Security-Policy header with which browsers load nothing from other hosts
    and run only the page's own script (https://www.w3.org/TR/CSP3/)."""
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
