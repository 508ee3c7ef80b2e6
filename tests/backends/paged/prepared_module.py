"""The module that a test's process runs."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from fastovms.backends.processes import receive, send


def serve(connection: Connection[Any, Any], name: str) -> None:
    send(connection, f"{receive(connection)} to {name}")
