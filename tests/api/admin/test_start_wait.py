"""Requests that come while the models are loaded at start."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from fastovms.api.admin import start_wait
from fastovms.api.admin.start_wait import StartWait
from fastovms.api.admin.status import ServerPhase, ServerStatus
from fastovms.api.serving.served import ServedModels
from fastovms.api.wire.bodies.body_reader import BodyReader
from fastovms.http.routing.messages import Request, Response
from fastovms.http.routing.router import Match, Router
from tests.fakes import FakeStream, make_request


class Start:
    """A server that is about to start."""

    def __init__(self, timeout: float = 20.0) -> None:
        self.status = ServerStatus(lambda request: request.method == "POST")
        self.router = Router()
        self.router.more_to_come = True
        self.router.pending = StartWait(self.status, self.router, BodyReader(), timeout)
        self.stream = FakeStream()
        self.requests: list[Request] = []

    def ask(self, path: str, body: object) -> asyncio.Task[Response | None]:
        request = make_request(path, body, stream=self.stream)
        self.requests.append(request)
        assert self.status.admit(request) is None
        match = self.router.match("POST", path)
        assert isinstance(match, Match)
        return asyncio.ensure_future(match.handler(request))  # type: ignore[arg-type]

    def open(self) -> None:
        self.router.add("POST", "/v1/chat/completions", lambda request: Response(200, b"answer"))
        self.router.add("GET", "/v1/models", lambda request: Response(200))
        self.router.more_to_come = False
        self.status.open(ServedModels())


@pytest.mark.parametrize(
    ("path", "body", "status", "opens_stream"),
    [
        ("/v1/chat/completions", {}, 200, False),
        ("/v1/chat/completions", {"stream": True}, 200, True),
        ("/v1/chat/completions", b"{", 200, False),
        ("/v1/models", {}, 405, False),
        ("/v1/nosuch", {"stream": True}, 404, False),
    ],
)
async def test_request_is_answered_once_the_models_are_loaded(path, body, status, opens_stream):
    start = Start()
    task = start.ask(path, body)
    await asyncio.sleep(0.01)
    assert not task.done()
    assert (start.requests[0].early_stream is not None) == opens_stream
    start.open()
    response = await task
    assert response is not None
    assert response.status == status
    assert start.requests[0].route == (path if status == 200 else "")


@pytest.mark.parametrize("has_comments", [False, True])
@pytest.mark.parametrize(
    ("patience", "message"),
    [(20.0, "the server is shutting down"), (0.0, "the model could not be loaded within 0 s")],
)
async def test_request_is_refused_if_no_model_is_loaded(patience, message, has_comments):
    start = Start(patience)
    task = start.ask("/v1/chat/completions", {"stream": True})
    await asyncio.sleep(0)
    start.stream.started = has_comments
    start.status.phase = ServerPhase.CLOSING
    response = await task
    if has_comments:
        assert response is None
        assert start.stream.events[0]["error"]["message"] == message
    else:
        assert response is not None
        assert (response.status, dict(response.headers)["Retry-After"] != "") == (503, True)
        assert orjson.loads(response.body)["error"]["message"] == message


async def test_number_of_waiting_requests_is_limited(monkeypatch):
    monkeypatch.setattr(start_wait, "_MAX_WAITING", 1)
    start = Start()
    first = start.ask("/v1/chat/completions", {})
    await asyncio.sleep(0)
    response = await start.ask("/v1/chat/completions", {})
    assert response is not None
    assert response.status in (429, 503)
    start.open()
    assert (await first).body == b"answer"  # type: ignore[union-attr]


def test_get_does_not_wait():
    start = Start()
    refusal = start.status.admit(make_request("/v1/models", method="GET"))
    assert refusal is not None
    assert refusal.status == 503
    assert start.router.match("GET", "/v1/models") is None
