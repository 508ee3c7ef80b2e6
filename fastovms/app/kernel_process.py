"""A process that compiles kernels outside the server, because compiling holds the GIL."""

from __future__ import annotations

from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from fastovms.backends.processes import receive, send


def serve(connection: Connection[Any, Any], *modules: str) -> None:
    """Imports modules that compile their kernels on import and store them in numba's cache. Sends a
    message at the end."""
    receive(connection)
    for module in modules:
        import_module(module)
    send(connection, True)
