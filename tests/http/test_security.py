"""Tests of keys and origins: clients without a key, and preflights, which need no key."""

from __future__ import annotations

from fastovms.http.gates import ApiKeys, CorsPolicy
from fastovms.http.messages import Request
from tests.http.client import talk
from tests.http.conftest import Start, render_error
from tests.http.more_cases import get, post


async def test_preflight_needs_no_key(start: Start) -> None:
    running = await start(
        {
            "authenticate": ApiKeys(["alpha"], render_error),
            "cross_origin": CorsPolicy("http://a"),
        }
    )
    preflight = get(
        "/echo", "Origin: http://a", "Access-Control-Request-Method: POST", method="OPTIONS"
    )
    refused = post(b"x", "Origin: http://a")
    granted = post(b"x", "Origin: http://a", "Authorization: Bearer alpha")
    stream = get("/stream", "Origin: http://a", "Authorization: Bearer alpha", "Connection: close")
    answers = (
        await talk(running.port, preflight + refused + granted + stream, answers=5)
    ).answers()
    assert [answer.status for answer in answers] == [204, 401, 200, 200]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "http://a"
    assert answers[0].headers["access-control-allow-methods"] == "POST"
    assert "www-authenticate" in answers[1].headers


async def test_fields_of_a_request_are_added_to_answers_and_streams(start: Start) -> None:
    def limit(request: Request) -> None:
        request.answer_fields = (("x-ratelimit-limit-requests", "3"),)

    running = await start({"authenticate": limit, "cross_origin": CorsPolicy("*")})
    stream = get("/stream", "Origin: http://a", "Connection: close")
    answers = (await talk(running.port, post(b"x") + stream, answers=2)).answers()
    assert [answer.headers["x-ratelimit-limit-requests"] for answer in answers] == ["3", "3"]
    assert answers[1].headers["access-control-allow-origin"] == "*"


async def test_client_without_a_key_learns_of_no_paths(start: Start) -> None:
    """Neither from these requests nor from OPTIONS, which needs no key only as a preflight."""
    running = await start(
        {"authenticate": ApiKeys(["alpha"], render_error), "cross_origin": CorsPolicy("*")}
    )
    preflight = ("Origin: http://a", "Access-Control-Request-Method: POST")
    heads = [
        get(path, *fields, method="OPTIONS")
        for fields in (
            (),
            preflight[:1],
            preflight[1:],
            preflight,
            ("Authorization: Bearer alpha",),
        )
        for path in ("/echo", "/nothing", "*")
    ]
    answers = (await talk(running.port, b"".join(heads), answers=len(heads))).answers()
    assert [answer.status for answer in answers] == [401] * 9 + [204] * 3 + [204, 404, 204]
    assert len({answer.raw_head.partition(b"X-Request-Id")[0] for answer in answers[9:12]}) == 1
    assert answers[12].headers["allow"] == "OPTIONS, POST"
