"""Tests of `fastovms/api/typed_body.py`."""

from __future__ import annotations

import inspect

import pytest

from tests.api.chat_models import MESSAGES, chat_model
from tests.fakes import FakeStream, make_request

# Every request for a model records its name for logs and metrics, also if a field is wrong.


BODIES = {
    "completions": {"prompt": "a"},
    "chat/completions": {"messages": MESSAGES},
    "responses": {"input": "a"},
    "tokenize": {"text": "a", "prompt": "a"},
    "detokenize": {"tokens": [97]},
}
AT_FAULT = {
    "completions": {"echo": 5},
    "chat/completions": {"messages": 5},
    "responses": {"input": 5},
    "tokenize": {"add_special_tokens": 5},
    "detokenize": {"tokens": 5},
}


@pytest.fixture
def noted(make_api, make_state):
    async def note(path: str, body: dict) -> tuple[int, dict[str, object]]:
        """Returns the status of an answer and the recorded name."""
        api = make_api(chat=chat_model(), state=make_state())
        request = make_request(path, body, stream=FakeStream())
        answer = api.router.match("POST", path).handler(request)
        response = await answer if inspect.isawaitable(answer) else answer
        return response.status, request.log_fields

    return note


@pytest.mark.parametrize("prefix", ["/v1", "/v3", "/v3/v1"])
@pytest.mark.parametrize("path", BODIES)
async def test_the_model_is_noted(noted, prefix, path):
    body = {"model": "fake", **BODIES[path]}
    for fields, expected in (({}, 200), (AT_FAULT[path], 400)):
        status, fields = await noted(f"{prefix}/{path}", {**body, **fields})
        assert (status, fields["model"]) == (expected, "fake")


@pytest.mark.parametrize(
    ("path", "fields", "status", "of_ovms"),
    [
        ("completions", {"model": "other"}, 404, 404),
        ("completions", {"model": "other", "echo": 5}, 400, 404),
        ("completions", {"model": 5}, 400, 412),
        ("tokenize", {"model": "other"}, 404, 404),
        ("tokenize", {"model": 5, "add_special_tokens": 5}, 400, 412),
    ],
)
async def test_no_model_is_noted(noted, path, fields, status, of_ovms):
    for prefix, expected in (("/v1", status), ("/v3", of_ovms)):
        assert await noted(f"{prefix}/{path}", {**BODIES[path], **fields}) == (expected, {})
