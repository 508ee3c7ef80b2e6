"""Tests of `fastovms/api/dialect.py`."""

from __future__ import annotations

import errno

import orjson
import pytest

from fastovms.api.dialect import (
    ANTHROPIC_ERRORS,
    COHERE_ERRORS,
    DIALECTS,
    OPENAI_ERRORS,
    OVMS_ERRORS,
    Dialect,
    ErrorReport,
    error_response,
    render_error,
)
from fastovms.errors import CONTEXT_EXCEEDED
from fastovms.http.messages import Request

# Each family of clients gets errors in its own format.


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
def test_error_body_has_the_members_of_its_dialect(
    status: int, openai: str, anthropic: str
) -> None:
    error = ErrorReport(status, "why", "n", "a_code", "r-1")
    assert orjson.loads(OPENAI_ERRORS.body(error)) == {
        "error": {"message": "why", "type": openai, "param": "n", "code": "a_code"}
    }
    assert orjson.loads(OVMS_ERRORS.body(error)) == {"error": "why"}
    assert orjson.loads(ANTHROPIC_ERRORS.body(error)) == {
        "type": "error",
        "error": {"type": anthropic, "message": "why", "details": {"error_code": "a_code"}},
        "request_id": "r-1",
    }
    assert orjson.loads(COHERE_ERRORS.body(error)) == {"id": "r-1", "message": "why"}
    assert orjson.loads(COHERE_ERRORS.body(error._replace(request_id=""))) == {"message": "why"}


def test_claude_code_knows_a_prompt_that_is_too_long() -> None:
    error = ErrorReport(400, "why", "n", CONTEXT_EXCEEDED)
    assert (
        orjson.loads(ANTHROPIC_ERRORS.body(error))["error"]["message"] == "prompt is too long: why"
    )
    assert orjson.loads(OPENAI_ERRORS.body(error))["error"]["message"] == "why"


# Errors of the HTTP layer have the format of their path's dialect.


ERROR_RESPONSES_OPENAI = {
    "error": {"message": "why", "type": "authentication_error", "param": None, "code": None}
}
ERROR_RESPONSES_ANTHROPIC = {
    "type": "error",
    "error": {"type": "authentication_error", "message": "why"},
    "request_id": "r-1",
}


@pytest.mark.parametrize(
    ("paths", "body"),
    [
        (("/v1/nothing", "/health", "", "*", "/v3x", "/v1/messagesx"), ERROR_RESPONSES_OPENAI),
        (("/v3/nothing", "/v3/v1/nothing", "/v3"), {"error": "why"}),
        (("/v2/rerank",), {"id": "r-1", "message": "why"}),
        (
            ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/nothing"),
            ERROR_RESPONSES_ANTHROPIC,
        ),
    ],
)
def test_errors_of_the_http_layer(paths: tuple[str, ...], body: object) -> None:
    for path in paths:
        response = render_error(Request("POST", path, id="r-1"), 401, "why")
        assert response.status == 401
        assert orjson.loads(response.body) == body


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (OSError(errno.EMFILE, "Too many open files"), 503, "too many open files"),
        (OSError(errno.ENFILE, "Too many open files in system"), 503, "too many open files"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 503, "too little memory"),
        (MemoryError(), 503, "too little memory"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 503, "processes"),
        (RuntimeError("can't start new thread"), 503, "too many threads"),
        (OSError(errno.EIO, "Input/output error"), 500, "internal server error"),
        (RuntimeError("another"), 500, "internal server error"),
    ],
)
def test_a_shortage_of_resources_is_a_503(
    error: Exception, status: int, text: str, dialect: Dialect
) -> None:
    answer = error_response(error, dialect)
    assert answer.status == status
    assert text in answer.body.decode()
    assert ("Retry-After" in dict(answer.headers)) is (status == 503)
