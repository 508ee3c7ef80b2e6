"""Lines are asked as requests are, and again where there is no room for them."""

from __future__ import annotations

import orjson
import pytest

from fastovms.api.batches.endpoints import refuse_line
from fastovms.batches.batch_line import AskLater, BatchLine, parse_line
from fastovms.batches.line_caller import LOWEST_PRIORITY, LineCaller
from fastovms.http.routing.messages import Request, Response
from fastovms.http.routing.router import Router


def line(url: str = "/v1/x", **body: object) -> BatchLine:
    whole = {"custom_id": "a", "url": url, "body": body}
    return parse_line(orjson.dumps(whole))


class Site:
    def __init__(self, *answers: Response) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.router = Router()
        self.router.add("POST", "/v1/x", self.answer)
        self.router.add("POST", "/v1/plain", lambda request: Response(204))

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        return self.answers.pop(0)

    def caller(self, **options) -> LineCaller:
        return LineCaller(self.router, lambda: "id", refuse_line, **options)


async def test_what_a_handler_sees() -> None:
    site = Site(Response(200, b"{}"))
    assert await site.caller().ask(line(n=1), "tenant") == (200, "id", b"{}")
    [request] = site.requests
    assert (request.method, request.route, request.body) == ("POST", "/v1/x", b'{"n":1}')
    assert (request.tenant, request.priority) == ("tenant", LOWEST_PRIORITY)
    assert not request.is_admin
    assert not request.is_local
    assert (await site.caller().ask(line("/v1/plain"), "")).body == b"null"


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (line(stream=True), 400, b"stream must not be true"),
        (line(background=True), 400, b"background must not be true"),
        (line("/v1/y"), 404, b"no such path"),
    ],
)
async def test_what_no_line_may_ask(asked, status, words) -> None:
    site = Site()
    answer = await site.caller().ask(asked, "")
    assert answer.status == status
    assert words in answer.body


@pytest.mark.parametrize(
    ("url", "status", "error"),
    [
        ("/v3/x", 412, "stream must not be true in a batch"),
        (
            "/v1/messages",
            400,
            {"type": "invalid_request_error", "message": "stream must not be true in a batch"},
        ),
        (
            "/v1/x",
            400,
            {
                "message": "stream must not be true in a batch",
                "type": "invalid_request_error",
                "param": "stream",
                "code": None,
            },
        ),
    ],
)
async def test_a_refusal_has_the_form_of_its_path(url: str, status: int, error: object) -> None:
    answer = await Site().caller().ask(line(url, stream=True), "")
    assert answer.status == status
    assert orjson.loads(answer.body)["error"] == error


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, (("Retry-After", "7"),), 7.0),
        (503, (("Retry-After", "700"),), 60.0),
        (503, (), 1.0),
    ],
)
async def test_it_says_when_to_ask_again(status, headers, seconds) -> None:
    site = Site(Response(status, headers=headers))
    assert await site.caller().ask(line(), "") == AskLater(seconds)


async def test_what_an_engine_loses_as_it_fails_is_for_the_next_process() -> None:
    site = Site(Response(500, b"{}"), Response(500, b"{}"))
    assert (await site.caller().ask(line(), "")).status == 500
    assert await site.caller(has_failed=lambda: True).ask(line(), "") == AskLater(1.0)
