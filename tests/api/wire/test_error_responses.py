"""Errors of the HTTP layer have the form of their path's clients."""

from __future__ import annotations

import orjson
import pytest

from fastovms.api.wire.error_responses import render_error
from fastovms.http.routing.messages import Request

OPENAI = {"error": {"message": "why", "type": "authentication_error", "param": None, "code": None}}
ANTHROPIC = {
    "type": "error",
    "error": {"type": "authentication_error", "message": "why"},
    "request_id": "r-1",
}


@pytest.mark.parametrize(
    ("paths", "body"),
    [
        (("/v1/nothing", "/health", "", "*", "/v3x", "/v1/messagesx"), OPENAI),
        (("/v3/nothing", "/v3/v1/nothing", "/v3"), {"error": "why"}),
        (("/v2/rerank",), {"id": "r-1", "message": "why"}),
        (("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/nothing"), ANTHROPIC),
    ],
)
def test_errors_of_the_http_layer(paths: tuple[str, ...], body: object) -> None:
    for path in paths:
        response = render_error(Request("POST", path, id="r-1"), 401, "why")
        assert response.status == 401
        assert orjson.loads(response.body) == body
