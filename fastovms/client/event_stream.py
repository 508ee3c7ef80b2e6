"""Reads a stream of server-sent events that arrives in pieces."""

from __future__ import annotations

from typing import Final

from fastovms.client.request_failed import RequestFailed

DONE: Final = b"[DONE]"
"""The data of the event that ends a stream of OpenAI's API."""

_MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes of one line, beyond which the stream is none of this API."""


class EventStream:
    """Finds the data of events. OpenAI's API writes each event as one line of data, so that a line
    is an event here; comments and other fields are left out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of the events whose lines have ended.

        Raises:
            RequestFailed: a line does not end.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _MAX_LINE:
            raise RequestFailed("protocol error", "a line of the stream has no end")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
