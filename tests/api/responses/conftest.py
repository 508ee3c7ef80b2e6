"""The Responses API over fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from fastovms.http.routing.messages import Response
from tests.api.chat_models import PARAMETERS, chat_model
from tests.fakes import FakeStream, model_info

V1 = "/v1/responses"
V3 = "/v3/responses"
BODY = {"model": "fake", "input": "Hi"}
TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}


@pytest.fixture
def make(make_api, make_state) -> Callable[..., Any]:
    """An API whose model chats; `state=None` keeps nothing."""

    def make_responses(script="Hello!", *, chat=None, defaults=None, context=2000, **options):
        model = model_info(max_model_len=context, defaults=defaults)
        options.setdefault("state", make_state())
        return make_api(script, model=model, chat=chat or chat_model(), **options)

    return make_responses


async def ask(api, method: str, path: str, body: object = None, *, tenant: str = ""):
    """Status and body of an answer that is not streamed."""
    response = await api.call(method, path, body, FakeStream(), tenant=tenant)
    assert isinstance(response, Response)
    return response.status, orjson.loads(response.body)
