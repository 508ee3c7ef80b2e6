from __future__ import annotations

import orjson
import pytest

from fastovms.api.wire.error_responses import render_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_errors_of_the_http_layer(status, kind):
    for path in ("/v1/nothing", "/health", "", "*", "/v3x"):
        response = render_error(path, status, "why")
        assert response.status == status
        assert orjson.loads(response.body) == {
            "error": {"message": "why", "type": kind, "param": None, "code": None}
        }
    for path in ("/v3/nothing", "/v3/v1/nothing", "/v3"):
        response = render_error(path, status, "why")
        assert (response.status, orjson.loads(response.body)) == (status, {"error": "why"})
