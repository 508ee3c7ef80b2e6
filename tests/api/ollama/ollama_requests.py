"""Requests of Ollama's clients with fakes, and the lines of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.chat_models import MESSAGES, chat_model
from tests.api.fake_api import Api
from tests.fakes import FakeStream, model_info

CHAT = "/api/chat"
GENERATE = "/api/generate"
ASKED = {"model": "fake", "messages": MESSAGES}
PROMPTED = {"model": "fake", "prompt": "Hi"}
THOUGHT = "<think>\nhm, hm\n</think>\n\nHello!"


@pytest.fixture
def make(make_api):
    def make_ollama(script="Hello!", *, chat=None, defaults=None, max_model_len=2000, **options):
        model = model_info(max_model_len=max_model_len, defaults=defaults)
        return make_api(script, model=model, chat=chat or chat_model(), **options)

    return make_ollama


async def ask(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns an answer that is not streamed."""
    return await api.answer(path, {**body, "stream": False})


async def lines(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the lines of a streamed answer."""
    stream = FakeStream()
    response = await api.call("POST", path, body, stream)
    assert response is None, response
    assert stream.closed
    assert stream.writes[-1].endswith(b"\n")
    return stream.lines


async def refused(api: Api, path: str, body: dict[str, Any], status: int = 400) -> str:
    """Returns the error of a refused request."""
    found, answer = await api.post(path, body)
    assert found == status, answer
    assert not api.backend.submitted
    return answer["error"]
