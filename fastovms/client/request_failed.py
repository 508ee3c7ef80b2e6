"""Declares why a request to a server has failed, and reads that from answers."""

from __future__ import annotations

import json
from typing import Final

from fastovms.errors import FastovmsError
from fastovms.quoting import one_line

_MAX_REASON: Final = 300


class RequestFailed(FastovmsError):
    """A server has not answered as it should.

    Attributes:
        kind: what failures are counted by, such as "HTTP 429" or "connection closed".
        reason: what the server, or the system, says of it, in one line.
    """

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        self.reason = one_line(" ".join(reason[: 4 * _MAX_REASON].split())[:_MAX_REASON])
        super().__init__(f"{kind}: {self.reason}" if self.reason else kind)


def failed_with(status: int, body: bytes) -> RequestFailed:
    """Returns what an answer with an error's status says, in the forms of OpenAI's API (`error`
    with a `message`), of OVMS (`error` as text) and of FastAPI (`detail`), or as plain text."""
    text = body.decode(errors="replace")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return RequestFailed(f"HTTP {status}", text)
    return RequestFailed(f"HTTP {status}", error_text(answer))


def error_text(answer: object) -> str:
    """Returns the words of an error that a server has sent as JSON."""
    while isinstance(answer, dict):
        inner = next((answer[key] for key in ("error", "message", "detail") if key in answer), None)
        if inner is None:
            return json.dumps(answer)
        answer = inner
    return answer if isinstance(answer, str) else json.dumps(answer)
