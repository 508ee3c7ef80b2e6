"""A client that sends and receives JSON, one request after another over one connection."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

Body = dict[str, Any]

LOST: Final = (OSError, HTTPException)
"""The exceptions of a client whose server dies."""

_TIMEOUT: Final = 60.0


class JsonClient:
    """A client that connects at its first request, and again after `close`."""

    def __init__(self, url: str, api_key: str = "none") -> None:
        parts = urlsplit(url)
        self._headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {api_key}",
        }
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT)

    def ask(self, method: str, path: str, body: Body | None = None) -> tuple[int, Body]:
        """Returns the status and the body. Raises one of `LOST`."""
        response = self.send(method, path, body)
        data = response.read()
        return response.status, json.loads(data)

    def send(self, method: str, path: str, body: Body | None = None) -> HTTPResponse:
        """Returns the response, which the caller must read to its end. Raises one of `LOST`."""
        data = None if body is None else json.dumps(body).encode()
        if self._connection.sock is None:
            _connect(self._connection)
        self._connection.request(method, path, data, self._headers)
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()


def _connect(connection: HTTPConnection) -> None:
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
