"""The process that compiles kernels outside the server: compiling holds the interpreter's lock."""

from __future__ import annotations

from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from fastovms.backends.processes import receive, send


def serve(connection: Connection[Any, Any], *modules: str) -> None:
    """Imports modules that compile their kernels when they are imported, and keep them in numba's
    cache. Sends that it has ended."""
    receive(connection)
    for module in modules:
        import_module(module)
    send(connection, True)
