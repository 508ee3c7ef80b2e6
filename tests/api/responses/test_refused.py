"""What a backend or a body refuses, in the words of the request."""

from __future__ import annotations

import pytest

from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.params import GenerationRequest, dead_end
from tests.api.responses.conftest import BODY, V1, V3, ask
from tests.api.responses.test_request import FORMAT, SCHEMA


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"text": SCHEMA}, "text.format.schema"),
        ({"text": FORMAT}, "text.format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ],
)
async def test_a_grammar_that_cannot_go_on_is_named_as_the_request_has_it(make, fields, name):
    def script(request: GenerationRequest, index: int) -> bytes:
        api.backend.refusal = dead_end(request.params.grammar, "nothing may follow")
        return b"Hello!"

    api = make(script)
    body = {**BODY, **fields}
    status, answer = await ask(api, "POST", V1, body)
    assert (status, answer["error"]["param"]) == (400, name)
    assert answer["error"]["message"].startswith(f"{name}: ")

    for how in ({}, {"background": True}):
        api.backend.refusal = None
        *_, error, failed, _ = await api.stream(V1, {**body, **how})
        assert (error["type"], error["param"]) == ("error", name)
        assert error["message"] == answer["error"]["message"]
        assert failed["response"]["error"]["message"] == error["message"]
        _, kept = await ask(api, "GET", f"{V1}/{failed['response']['id']}")
        assert kept == failed["response"]


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("busy"), 429), (BackendUnavailable("gone"), 503)]
)
@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_overload_is_a_429_and_unavailable_backend_a_503(make, error, status, fields):
    api = make()
    api.backend.submit_error = error
    found, _ = await ask(api, "POST", V1, {**BODY, **fields})
    assert found == status


async def test_a_body_that_is_no_object(make):
    for path, expected in ((V1, 400), (V3, 412)):
        status, _ = await ask(make(), "POST", path, b"[]")
        assert status == expected
