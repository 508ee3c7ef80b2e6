"""The null engine does all that the server asks of an engine."""

from __future__ import annotations

from bench.null_engine.null_server import NullBackend
from fastovms.backend import Backend, GenerationBackend


def test_null_backend_has_all_members_of_the_protocols() -> None:
    names = {
        name
        for protocol in (Backend, GenerationBackend)
        for name in vars(protocol)
        if not name.startswith("_")
    }
    assert {"submit", "stats"} <= names
    # `failure` is an attribute of its objects, not of the class.
    assert names - {"failure"} <= set(dir(NullBackend))
