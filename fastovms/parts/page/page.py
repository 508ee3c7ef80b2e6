"""The page at `/` and its files."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from fastovms.api.dialect import render_error
from fastovms.api.endpoint import Operation
from fastovms.http.messages import HeaderPairs, Request, Response
from fastovms.http.routing import Router
from fastovms.parts.page.bundle import bundle_modules, bundle_styles

FOLDER: Final = "ui"
"""The first path segment of all files except the page itself."""

_INDEX: Final = "index.html"
_SCRIPT: Final = "main.js"
_STYLE: Final = "main.css"
_VENDOR: Final = "vendor/"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The media types of files that are served, by file name extension. Other files, such as licences,
are only for readers of the package."""

_HASH_LENGTH: Final = 16
_COMPRESSION: Final = 6
"""The gzip level. Level 9 saves 0.1 % more and takes twice as long."""


@dataclass(frozen=True)
class PageFile:
    """A file of the page.

    Attributes:
        digest: a hash of the content.
    """

    content_type: str
    body: bytes
    digest: str

    @cached_property
    def zipped(self) -> bytes:
        """Returns the gzip-compressed body. It is compressed at the first request, so that the
        server's start does not wait for it."""
        # No time stamp: the bytes are the same at every start.
        return gzip.compress(self.body, _COMPRESSION, mtime=0)


@dataclass(frozen=True)
class PageFiles:
    """All files of the page.

    Attributes:
        index: the page itself.
        version: a path segment of the other files that changes with any of them, so that browsers
            may cache files indefinitely.
        others: the other files by their paths below the version: one script, one stylesheet, and
            third-party files such as "vendor/katex.min.js".
    """

    index: PageFile
    version: str
    others: Mapping[str, PageFile]

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each file, without a proxy's prefix."""
        return ("/", *(f"/{FOLDER}/{self.version}/{name}" for name in self.others))

    def add_routes(self, router: Router) -> None:
        """Adds the routes of the page and its files."""
        routes = PageRoutes(self)
        index = Operation(
            "Answers with a page that chats and shows the engine live.",
            str,
            "The page",
            media_type="text/html",
        )
        file = Operation(
            "Answers with a file of that page: a module, a style, a picture.",
            str,
            "The page",
            media_type="text/javascript",
        )
        router.add("GET", "/", routes.index, index)
        router.add("GET", f"/{FOLDER}/{{version}}/{{name:path}}", routes.file, file)


def read_page_files(root_path: str = "") -> PageFiles:
    """Reads the files of the page. `root_path` is the prefix that a proxy keeps before every path,
    which is used in the page's links; "" = relative links, which work behind any proxy."""
    bodies = _bundled(dict(sorted(_walk(files(__package__).joinpath("static")))))
    template = bodies.pop(_INDEX)
    everything = hashlib.sha256()
    for name, body in bodies.items():
        everything.update(b"%s %d " % (name.encode(), len(body)) + body)
    version = everything.hexdigest()[:_HASH_LENGTH]
    place = f"{root_path}/{FOLDER}/{version}" if root_path else f"{FOLDER}/{version}"
    index = template.replace(b"{{files}}", place.encode())
    others = {name: _page_file(name, body) for name, body in bodies.items()}
    return PageFiles(_page_file(_INDEX, index), version, others)


def _bundled(bodies: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the files as served: the page's own modules and stylesheets are bundled."""
    own = {"js": dict[str, str](), "css": dict[str, str]()}
    sent = {}
    for name, body in bodies.items():
        if _ending(name) in own and not name.startswith(_VENDOR):
            own[_ending(name)][name] = body.decode()
        else:
            sent[name] = body
    sent[_SCRIPT] = bundle_modules(own["js"], _SCRIPT).encode()
    sent[_STYLE] = bundle_styles(own["css"], _STYLE).encode()
    return sent


def _walk(folder: Traversable, place: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{place}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        elif _ending(name) in _TYPES:
            yield name, entry.read_bytes()


def _page_file(name: str, body: bytes) -> PageFile:
    digest = hashlib.sha256(body).hexdigest()[:_HASH_LENGTH]
    return PageFile(_TYPES[_ending(name)], body, digest)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
"""The Content-Security-Policy: the page loads and calls only this server, cannot be shown in a
frame, and no text becomes HTML before DOMPurify has sanitized it (https://www.w3.org/TR/CSP3/,
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
    """The handlers of the page and its files."""

    def __init__(self, files: PageFiles) -> None:
        self._files = files

    def index(self, request: Request) -> Response:
        """Returns the page, which browsers revalidate each time."""
        return _answer(request, self._files.index, _ASK_AGAIN)

    def file(self, request: Request) -> Response:
        """Returns a file of the page, which browsers cache permanently; 404 if the page has no such
        file or version."""
        version, name = (request.path_params[part] for part in ("version", "name"))
        file = self._files.others.get(name) if version == self._files.version else None
        if file is None:
            return render_error(request, 404, f"no such file of the page: {request.path}")
        return _answer(request, file, _FOR_EVER)


def _answer(request: Request, file: PageFile, caching: str) -> Response:
    takes_gzip = _takes_gzip(request.headers.get("accept-encoding", "") or "")
    # Each encoding of a file has its own ETag (RFC 9110, 8.8.3.3).
    tag = f'"{file.digest}-gzip"' if takes_gzip else f'"{file.digest}"'
    fields = (*_FIELDS, ("ETag", tag), ("Cache-Control", caching))
    if _has(request.headers.get("if-none-match", "") or "", tag):
        return Response(304, headers=fields)
    if takes_gzip:
        fields = (*fields, ("Content-Encoding", "gzip"))
    body = file.zipped if takes_gzip else file.body
    return Response(200, body, file.content_type, fields)


def _takes_gzip(accepted: str) -> bool:
    """Returns whether the Accept-Encoding header (RFC 9110, 12.5.3) allows gzip; False if the
    header is missing."""
    for coding in accepted.lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name in ("gzip", "*"):
            weight = next((p[2:] for p in parameters if p.startswith("q=")), "1")
            return weight.strip("0.") != ""
    return False


def _has(tags: str, tag: str) -> bool:
    """Returns whether the If-None-Match header (RFC 9110, 13.1.2) contains a tag, weak tags
    included."""
    named = (part.strip().removeprefix("W/") for part in tags.split(","))
    return any(one in ("*", tag) for one in named)
