"""Tests of the access log's fields for failed requests."""

from __future__ import annotations

import pytest

from fastovms.http.routing import Match
from tests.api.chat_models import chat_model
from tests.fakes import FakeStream, make_request


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "a"}), ("/v3/completions", {"prompt": "a"}),
     ("/v1/responses", {"input": "a"})],
)  # fmt: skip
async def test_failed_stream_logs_its_error(make_api, path, body):
    """The status is 200, because the head was sent before the error."""
    api = make_api("hello", chat=chat_model())
    api.backend.fail_after = 2
    body = {"model": api.backend.model.name, "stream": True, **body}
    request = make_request(path, body, stream=FakeStream())
    match = api.router.match("POST", path)
    assert isinstance(match, Match)
    assert await match.handler(request) is None
    assert request.log_fields["error"] == "out of order"


async def test_refusal_logs_param_and_error(make_api):
    response = await make_api().call("POST", "/v1/completions", {"prompt": "a", "stop": 5})
    assert dict(response.log_fields) == {
        "param": "stop",
        "error": "stop must be a string or an array, not 5",
    }


async def test_no_more_of_a_reason_is_logged_than_a_line_should_have(make_api):
    response = await make_api().call("POST", "/v1/completions", {"prompt": "a", "user": ["x"] * 10})
    assert len(dict(response.log_fields)["error"]) <= 300
    long = await make_api().call("POST", "/v1/completions", {"prompt": "a", "model": "x" * 10_000})
    assert len(dict(long.log_fields)["error"]) <= 300
