"""What fails before the first byte has a status of its own."""

from __future__ import annotations

import orjson
import pytest

from fastovms.errors import BackendUnavailable, EngineFailed, Overloaded, RequestError
from tests.api.completions.completion_requests import BODY, V1, V3
from tests.fakes import FakeStream


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (Overloaded("busy", retry_after=2.2), 429, (("Retry-After", "3"),)),
        (BackendUnavailable("loading"), 503, (("Retry-After", "1"),)),
        (EngineFailed("boom"), 500, ()),
        (RequestError("does not fit", param="prompt"), 400, ()),
        (ZeroDivisionError("a secret"), 500, ()),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_of_the_backend(make_api, path, error, status, headers, streamed):
    api = make_api()
    api.backend.submit_error = error
    stream = FakeStream()
    response = await api.call("POST", path, {**BODY, "stream": streamed}, stream)
    assert (response.status, response.headers) == (status, headers)
    assert not stream.started
    message = orjson.loads(response.body)["error"]
    message = message["message"] if path == V1 else message
    assert message == ("internal server error" if "secret" in str(error) else str(error))


async def test_failure_before_the_first_byte_is_a_real_status(make_api):
    api = make_api()
    api.backend.fail_after = 0
    for streamed in (False, True):
        response = await api.call("POST", V1, {**BODY, "stream": streamed}, FakeStream())
        assert response.status == 500
        assert orjson.loads(response.body)["error"]["type"] == "server_error"
