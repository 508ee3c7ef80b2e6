"""Each family of clients reads errors in its own form."""

from __future__ import annotations

import pytest

from fastovms.api.wire.error_forms import (
    ANTHROPIC_ERRORS,
    COHERE_ERRORS,
    OLLAMA_ERRORS,
    OPENAI_ERRORS,
    OVMS_ERRORS,
    ErrorForm,
    ToldError,
)
from fastovms.errors import CONTEXT_EXCEEDED

TYPES = [
    # status, OpenAI's type, Anthropic's
    (400, "invalid_request_error", "invalid_request_error"),
    (401, "authentication_error", "authentication_error"),
    (403, "permission_error", "permission_error"),
    (404, "not_found_error", "not_found_error"),
    (405, "invalid_request_error", "invalid_request_error"),
    (413, "invalid_request_error", "request_too_large"),
    (429, "rate_limit_error", "rate_limit_error"),
    (500, "server_error", "api_error"),
    (503, "server_error", "overloaded_error"),
]


@pytest.mark.parametrize(("status", "openai", "anthropic"), TYPES)
def test_members(status: int, openai: str, anthropic: str) -> None:
    error = ToldError(status, "why", "n", "a_code", "r-1")
    assert OPENAI_ERRORS.members(error) == {
        "error": {"message": "why", "type": openai, "param": "n", "code": "a_code"}
    }
    assert OVMS_ERRORS.members(error) == {"error": "why"}
    assert ANTHROPIC_ERRORS.members(error) == {
        "type": "error",
        "error": {"type": anthropic, "message": "why", "details": {"error_code": "a_code"}},
        "request_id": "r-1",
    }
    assert COHERE_ERRORS.members(error) == {"id": "r-1", "message": "why"}
    assert COHERE_ERRORS.members(error._replace(request_id="")) == {"message": "why"}


def test_claude_code_knows_a_prompt_that_is_too_long() -> None:
    error = ToldError(400, "why", "n", CONTEXT_EXCEEDED)
    assert ANTHROPIC_ERRORS.members(error)["error"]["message"] == "prompt is too long: why"
    assert OPENAI_ERRORS.members(error)["error"]["message"] == "why"


@pytest.mark.parametrize(
    ("form", "frames"),
    [
        (OPENAI_ERRORS, b"data: {}\n\ndata: [DONE]\n\n"),
        (OVMS_ERRORS, b"data: {}\n\ndata: [DONE]\n\n"),
        (OLLAMA_ERRORS, b"{}\n"),
        (ANTHROPIC_ERRORS, b"event: error\ndata: {}\n\n"),
        (COHERE_ERRORS, b"data: {}\n\n"),
    ],
)
def test_ends_of_streams(form: ErrorForm, frames: bytes) -> None:
    assert form.last_frames(b"{}") == frames
