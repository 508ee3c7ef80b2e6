"""What pages of other sites are refused, by the fields that a browser says of them."""

from __future__ import annotations

import pytest

from fastovms.http.gates.cors import CorsPolicy
from fastovms.http.gates.origin_check import OriginCheck
from fastovms.http.routing.messages import Headers, Request
from tests.http.conftest import render_error

HOST = "127.0.0.1:49623"
OWN, PORT, SITE = "http://127.0.0.1:49623", "http://127.0.0.1:40457", "http://evil.example:40457"

# As Chromium 156 has them; `python -m bench.security.browser --record` prints them.
FORM = "application/x-www-form-urlencoded"
FETCH = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
NO_CORS = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"}
FRAME = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
IMAGE = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
PREFLIGHT = {**FETCH, "Access-Control-Request-Method": "POST"}


def refused(
    policy: CorsPolicy,
    method: str,
    fields: dict[str, str],
    *,
    origin: str | None = None,
    site: str | None = None,
    content_type: str | None = None,
    tls: bool = False,
    host: str = HOST,
) -> bool:
    given = {"Origin": origin, "Sec-Fetch-Site": site, "Content-Type": content_type, **fields}
    named = [("Host", host), *((name, value) for name, value in given.items() if value is not None)]
    request = Request(method, "/v1/x", headers=Headers(named), client="127.0.0.1:1")
    answer = OriginCheck(policy, render_error, tls=tls)(request)
    assert answer is None or answer.status == 403
    return answer is not None


@pytest.mark.parametrize(("origin", "site"), [(PORT, "same-site"), (SITE, "cross-site")])
@pytest.mark.parametrize(
    ("method", "fields", "content_type", "has_origin"),
    [
        ("POST", NO_CORS, "text/plain", True),
        ("POST", FETCH, "text/plain", True),
        ("POST", NO_CORS, FORM, True),
        ("POST", FETCH, FORM, True),
        ("POST", NO_CORS, None, True),
        ("OPTIONS", PREFLIGHT, None, True),
        ("POST", FETCH, "application/json", True),
        ("POST", FRAME, "text/plain", True),
        ("POST", FRAME, FORM, True),
        ("POST", FRAME, "multipart/form-data; boundary=----WebKitFormBoundaryLTsD7", True),
        ("GET", FETCH, None, True),
        ("GET", NO_CORS, None, False),
        ("GET", IMAGE, None, False),
        ("GET", FRAME, None, False),
        ("DELETE", FETCH, None, True),
    ],
)
def test_pages_of_others(
    origin: str,
    site: str,
    method: str,
    fields: dict[str, str],
    content_type: str | None,
    has_origin: bool,
) -> None:
    given = origin if has_origin else None
    for policy in (CorsPolicy(""), CorsPolicy("https://app.example")):
        assert refused(policy, method, fields, origin=given, site=site, content_type=content_type)
        # Older browsers, and those for which the server is not local, say less.
        if has_origin:
            assert refused(policy, method, {}, origin=given, content_type=content_type)
    is_form = content_type is not None and content_type != "application/json"
    for policy in (CorsPolicy("*"), CorsPolicy(f"https://app.example, {origin}")):
        if not has_origin and not policy.any_origin:
            continue  # which page it is, no browser says
        expected = is_form and site == "cross-site"
        assert expected is refused(
            policy, method, fields, origin=given, site=site, content_type=content_type
        )


@pytest.mark.parametrize("origin", ["null", "", "http://127.0.0.1", f"{OWN}/", "http://evil"])
def test_other_origins(origin: str) -> None:
    assert refused(CorsPolicy(""), "GET", {}, origin=origin)
    assert refused(CorsPolicy(OWN), "POST", {}, origin=origin, site="none")
    assert refused(CorsPolicy(""), "GET", {}, origin=f"{OWN}, {origin}")


@pytest.mark.parametrize(
    ("method", "fields", "origin", "site"),
    [
        ("POST", {}, None, None),  # no browser
        ("POST", FETCH, OWN, "same-origin"),
        ("POST", FETCH, OWN, None),
        ("GET", FETCH, None, "same-origin"),
        ("GET", LINK, None, "none"),  # typed
        ("GET", LINK, None, "cross-site"),  # a link that was followed
        # A proxy has put another Host in place of the one that the browser asked for.
        ("POST", FETCH, "https://llm.example", "same-origin"),
    ],
)
@pytest.mark.parametrize("content_type", [FORM, "application/json"])
def test_the_servers_own_pages_and_clients(
    method: str, fields: dict[str, str], origin: str | None, site: str | None, content_type: str
) -> None:
    given = content_type if method == "POST" else None
    for origins in ("", "*", "https://app.example"):
        assert not refused(
            CorsPolicy(origins), method, fields, origin=origin, site=site, content_type=given
        )


def test_the_scheme_of_the_server() -> None:
    """A proxy may speak TLS for a server that does not; a page without TLS is none of one that
    does."""
    policy = CorsPolicy("")
    assert not refused(policy, "POST", {}, origin="https://a.example", host="a.example")
    assert not refused(policy, "POST", {}, origin="https://a.example", host="a.example", tls=True)
    assert refused(policy, "POST", {}, origin="http://a.example", host="a.example", tls=True)


@pytest.mark.parametrize(("method", "fields"), [("POST", LINK), ("GET", FRAME), ("HEAD", NO_CORS)])
def test_what_is_no_followed_link(method: str, fields: dict[str, str]) -> None:
    assert refused(CorsPolicy(""), method, fields, site="cross-site")
