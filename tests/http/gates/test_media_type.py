"""Bodies that are no JSON are refused."""

from __future__ import annotations

import pytest

from fastovms.http.gates.media_type import JsonOnly
from fastovms.http.routing.messages import Response
from tests.http.conftest import render_error
from tests.http.gates.requests import request


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
