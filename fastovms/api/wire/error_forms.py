"""Declares in which forms families of clients are told of errors, as an answer and as the end of a
stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from fastovms.api.wire.sse_frames import DONE, frame
from fastovms.errors import CONTEXT_EXCEEDED
from fastovms.json_lines import on_one_line


class ToldError(NamedTuple):
    """What a client is told of an error.

    Attributes:
        param: the field at fault; None = no one field.
        code: the reason, for programs; None = there is none.
        request_id: the id of the request that has failed.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How one family of clients is told of errors.

    Attributes:
        members: makes the JSON object of an error.
        last_frames: makes, of that object's JSON, what ends a stream.
    """

    members: Callable[[ToldError], Mapping[str, Any]]
    last_frames: Callable[[bytes], bytes]

    def body(self, error: ToldError) -> bytes:
        return orjson.dumps(self.members(error))


_OPENAI_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""OpenAI's error types by status; other 4xx are `invalid_request_error`, 5xx `server_error`."""

_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    **_OPENAI_TYPES,
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error types by status; other 4xx are `invalid_request_error`, 5xx `api_error`."""


def _openai_members(error: ToldError) -> dict[str, Any]:
    usual = "invalid_request_error" if error.status < 500 else "server_error"
    kind = _OPENAI_TYPES.get(error.status, usual)
    told = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": told}


def _text_members(error: ToldError) -> dict[str, Any]:
    return {"error": error.message}


def _anthropic_members(error: ToldError) -> dict[str, Any]:
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, usual)
    message = error.message
    if error.code == CONTEXT_EXCEEDED:
        # Claude Code knows by these words that it has to summarize.
        message = f"prompt is too long: {message}"
    told: dict[str, Any] = {"type": kind, "message": message}
    if error.code is not None:
        told["details"] = {"error_code": error.code}
    return {"type": "error", "error": told, "request_id": error.request_id or None}


def _cohere_members(error: ToldError) -> dict[str, Any]:
    named = {"id": error.request_id} if error.request_id else {}
    return {**named, "message": error.message}


OPENAI_ERRORS: Final = ErrorForm(_openai_members, lambda body: frame(body) + DONE)
"""`{"error": {"message", "type", "param", "code"}}`"""

OVMS_ERRORS: Final = ErrorForm(_text_members, lambda body: frame(body) + DONE)
"""`{"error": "text"}`"""

OLLAMA_ERRORS: Final = ErrorForm(_text_members, lambda body: on_one_line(body) + b"\n")
"""The same, as a line of its own where a stream ends."""

ANTHROPIC_ERRORS: Final = ErrorForm(_anthropic_members, lambda body: frame(body, "error"))
"""`{"type": "error", "error": {"type", "message", "details"}, "request_id"}`; the event ends a
stream."""

COHERE_ERRORS: Final = ErrorForm(_cohere_members, frame)
"""`{"id", "message"}`; nothing that has this form is streamed here."""
