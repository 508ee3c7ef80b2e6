"""The null engine does all that the server asks of an engine."""

from __future__ import annotations

from bench.null_server import NullBackend
from fastovms.backend import Backend


def test_nothing_of_a_backend_is_missing() -> None:
    names = {name for name in vars(Backend) if not name.startswith("_")}
    assert "submit" in names
    # `failure` is an attribute of its objects, not of the class.
    assert names - {"failure"} <= set(dir(NullBackend))
