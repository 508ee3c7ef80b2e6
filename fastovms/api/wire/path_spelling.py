"""Reads the paths that clients make of a base URL which is a little off, and says which path others
may mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby, takewhile
from typing import Final

from fastovms.api.wire.dialect import DIALECTS, OPENAI

_VERSIONS: Final = frozenset(
    segment
    for dialect in DIALECTS
    for prefix in dialect.prefixes
    for segment in prefix[1:].split("/")
)
_HEADS: Final = _VERSIONS | {"models"}
"""What a path begins with whose spelling is put right. Others, such as that of metrics, stay as
they are: a proxy in front may have rules for them, which another spelling must not get past."""

_UNTIDY: Final = re.compile(r"//|./$|^/(?:v3/)?(v[13])/\1(?:/|$)")
_MAX_FOREIGN: Final = 2
"""Segments that may stand in front of a path on other servers, such as `/openai` or `/api`."""


class ApiPaths:
    """Implements `dispatch.PathReader` for the paths of both dialects."""

    def tidy(self, raw_path: str) -> str:
        """Returns the path as it is registered: with one slash where several stand, none at its
        end, and its version once, be it `//v1/models/` or `/v1/v1/models`."""
        if not _UNTIDY.search(raw_path):
            return raw_path
        segments = _segments(raw_path)
        if not segments or segments[0] not in _HEADS:
            return raw_path
        versions = list(takewhile(_VERSIONS.__contains__, segments))
        once = [version for version, _ in groupby(versions)]
        return "/" + "/".join([*once, *segments[len(versions) :]])

    def advice(self, raw_path: str, root: str, exists: Callable[[str], bool]) -> str:
        segments = _segments(raw_path)
        for start in range(min(len(segments), _MAX_FOREIGN + 1)):
            for prefix in OPENAI.prefixes:
                meant = "/".join([prefix, *segments[start:]])
                if exists(meant):
                    return f"; did you mean {root}{meant}? The base URL ends in {root}{prefix}"
        return ""


def _segments(raw_path: str) -> list[str]:
    return [segment for segment in raw_path.split("/") if segment]
