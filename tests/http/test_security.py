"""Keys, origins and media types."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.http.gates.auth import ApiKeys, read_api_keys
from fastovms.http.gates.cors import CorsPolicy
from fastovms.http.gates.media_type import JsonOnly
from fastovms.http.routing.messages import Headers, Request, Response
from tests.http.client import talk
from tests.http.conftest import Start, render_error
from tests.http.more_cases import get, post


def request(path: str = "/v1/x", method: str = "POST", **fields: str) -> Request:
    named = [(name.replace("_", "-"), value) for name, value in fields.items()]
    return Request(method, path, headers=Headers(named))


@pytest.mark.parametrize(
    ("authorization", "granted"),
    [
        ("Bearer alpha", True),
        ("bearer beta", True),
        ("Bearer  alpha ", True),
        ("Bearer alph", False),
        ("Bearer alphaa", False),
        ("Bearer ", False),
        ("Bearer", False),
        ("alpha", False),
        ("Basic alpha", False),
        ("Bearer alpha beta", False),
        ("Bearer \xe9", False),
        # Blanks of Latin-1 and of Unicode that are none of HTTP's
        ("Bearer alpha\xa0", False),
        ("Bearer alpha\x85", False),
        ("Bearer \xa0alpha", False),
        ("Bearer\xa0alpha", False),
        ("Bearer alpha\x1f", False),
        ("Bearer alpha\xff", False),
        (None, False),
    ],
)
def test_api_keys(authorization: str | None, granted: bool) -> None:
    keys = ApiKeys(["alpha", "beta"], render_error, exempt=["/health", "/"])
    fields = {} if authorization is None else {"Authorization": authorization}
    asked = request(**fields)
    refusal = keys(asked)
    assert bool(asked.tenant) is granted
    if granted:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.status == 401
    assert refusal.headers == (("WWW-Authenticate", 'Bearer realm="fastovms"'),)
    assert b"alpha" not in refusal.body


@pytest.mark.parametrize(
    ("path", "free"),
    [("/health", True), ("/health/", True), ("/", True), ("/healthy", False), ("/x/health", False)],
)
def test_exempt_paths(path: str, free: bool) -> None:
    keys = ApiKeys(["alpha"], render_error, exempt=["/health", "/"])
    assert (keys(request(path)) is None) is free


def test_each_key_is_a_tenant() -> None:
    keys = ApiKeys(["alpha", "beta"], render_error)
    asked = [request(Authorization=f"Bearer {key}") for key in ("alpha", "beta", "beta")]
    assert all(keys(one) is None for one in asked)
    first, second, third = (one.tenant for one in asked)
    assert first != second == third
    assert "alpha" not in first


def test_no_keys() -> None:
    with pytest.raises(ConfigurationError, match="no API key"):
        ApiKeys([], render_error)


def test_keys_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbf# ours\r\nalpha\r\n\r\n  beta  \r\n  # and one more")
    assert read_api_keys(path, {"API_KEY": "gamma"}) == ["alpha", "beta"]
    assert read_api_keys(None, {"API_KEY": " gamma\n"}) == ["gamma"]
    assert read_api_keys(None, {}) == []


@pytest.mark.parametrize(
    ("text", "message"), [("\n#x\n", "holds no"), ("a b\n", "visible"), ("\xe9\n", "visible")]
)
def test_bad_key_files(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_api_keys(path, {})
    assert "a b" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_api_keys(tmp_path / "none", {})


ANY = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "X-Request-Id"}


@pytest.mark.parametrize(
    ("policy", "origin", "fields"),
    [
        (CorsPolicy("*"), None, {}),
        (CorsPolicy(""), None, {}),
        (CorsPolicy(""), "http://a", {}),
        (CorsPolicy("*"), "http://a", ANY),
        (
            CorsPolicy("*", credentials=True),
            "http://a",
            {**ANY, "Access-Control-Allow-Credentials": "true"},
        ),
        (
            CorsPolicy("http://a, http://b", credentials=True),
            "http://b",
            {
                **ANY,
                "Access-Control-Allow-Origin": "http://b",
                "Vary": "Origin",
                "Access-Control-Allow-Credentials": "true",
            },
        ),
        (CorsPolicy("http://a"), "http://evil", {"Vary": "Origin"}),
        (CorsPolicy("http://a"), "http://a.evil", {"Vary": "Origin"}),
        (CorsPolicy("http://a"), None, {"Vary": "Origin"}),
    ],
)
def test_cors_fields(policy: CorsPolicy, origin: str | None, fields: dict[str, str]) -> None:
    asked = request(**({} if origin is None else {"Origin": origin}))
    assert dict(policy.response_fields(asked)) == fields


def test_preflight_fields() -> None:
    asked = request(
        method="OPTIONS",
        Origin="http://a",
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization, x-a",
    )
    assert dict(CorsPolicy("*").preflight_fields(asked) or ()) == {
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": "authorization, x-a",
        "Access-Control-Max-Age": "600",
    }
    listed = CorsPolicy("http://a", "GET,POST", "authorization")
    assert dict(listed.preflight_fields(asked) or ()) == {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": "authorization",
        "Access-Control-Max-Age": "600",
    }
    for fields in ({}, {"Origin": "http://a"}, {"Access_Control_Request_Method": "POST"}):
        assert listed.preflight_fields(request(method="OPTIONS", **fields)) is None


async def test_a_preflight_needs_no_key(start: Start) -> None:
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


async def test_strangers_learn_of_no_paths(start: Start) -> None:
    """Neither from OPTIONS, which is free for preflights alone, nor from these."""
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


@pytest.mark.parametrize(
    ("method", "fields", "allowed"),
    [
        ("POST", {}, True),
        ("POST", {"Content-Type": "application/json"}, True),
        ("POST", {"Content-Type": "Application/JSON ; charset=utf-8"}, True),
        ("POST", {"Content-Type": "application/vnd.x+json"}, True),
        ("POST", {"Content-Type": "text/plain"}, False),
        ("POST", {"Content-Type": "application/x-www-form-urlencoded"}, True),
        ("POST", {"Content-Type": "multipart/form-data; boundary=x"}, False),
        ("POST", {"Content-Type": ""}, False),
        ("POST", {"Content-Encoding": "identity"}, True),
        ("POST", {"Content-Encoding": "gzip", "Content-Type": "application/json"}, False),
        ("GET", {"Content-Type": "text/plain"}, True),
    ],
)
def test_json_only(method: str, fields: dict[str, str], allowed: bool) -> None:
    named = {name.replace("-", "_"): value for name, value in fields.items()}
    refusal: Response | None = JsonOnly(render_error)(request(method=method, **named))
    assert (refusal is None) is allowed
    if refusal is not None:
        assert refusal.status == 415
        if "Content-Encoding" in fields:
            assert refusal.headers == (("Accept-Encoding", "identity"),)
