"""Reads the files of the page from the package, and hashes and compresses them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

FOLDER: Final = "ui"
"""The first segment of the paths of all files but the page itself."""

_INDEX: Final = "index.html"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The types of the files that are sent, by the end of the name. Others, such as licences, are for
readers of the package."""

_HASH_LENGTH: Final = 16


@dataclass(frozen=True)
class PageFile:
    """A file of the page.

    Attributes:
        digest: tells the file apart from every other version of it.
    """

    content_type: str
    body: bytes
    digest: str

    @cached_property
    def zipped(self) -> bytes:
        """The body in gzip's format. It is compressed once, when it is first asked for, which takes
        some milliseconds: a start does not wait for it."""
        return gzip.compress(self.body, mtime=0)  # the same bytes at every start


@dataclass(frozen=True)
class PageFiles:
    """All files of the page.

    Attributes:
        index: the page itself.
        version: the segment of the other files' paths that changes with any of them, so that a
            browser may keep each for ever, and modules import each other by relative paths.
        others: by their paths below the version, such as "core/dom.js".
    """

    index: PageFile
    version: str
    others: Mapping[str, PageFile]

    def paths(self) -> Iterator[str]:
        """Yields the path of every file, without what a proxy leaves in front."""
        yield "/"
        yield from (f"/{FOLDER}/{self.version}/{name}" for name in self.others)


def read_page_files(root_path: str = "") -> PageFiles:
    """Reads the files.

    Args:
        root_path: what a proxy leaves in front of every path; the page names its files with it. ""
            = it names them relative to itself, so that a proxy may have taken off anything.
    """
    bodies = dict(sorted(_walk(files(__package__).joinpath("static"))))
    template = bodies.pop(_INDEX)
    everything = hashlib.sha256()
    for name, body in bodies.items():
        everything.update(b"%s %d " % (name.encode(), len(body)) + body)
    version = everything.hexdigest()[:_HASH_LENGTH]
    place = f"{root_path}/{FOLDER}/{version}" if root_path else f"{FOLDER}/{version}"
    index = template.replace(b"{{files}}", place.encode())
    others = {name: _page_file(name, body) for name, body in bodies.items()}
    return PageFiles(_page_file(_INDEX, index), version, others)


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
