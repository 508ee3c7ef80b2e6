"""The header fields that let pages of other origins call the server."""

from __future__ import annotations

import pytest

from fastovms.http.gates.cors import CorsPolicy
from tests.http.gates.requests import request

ANY = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "X-Request-Id, Request-Id, traceresponse",
}


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
