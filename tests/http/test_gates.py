"""Tests of `fastovms/http/gates.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.http.gates import (
    ApiKeys,
    CorsPolicy,
    ForwardedClients,
    HostCheck,
    JsonOnly,
    KeyLimits,
    OriginCheck,
    machine_names,
    read_api_keys,
)
from fastovms.http.messages import Headers, Request, Response
from tests.http.conftest import render_error
from tests.http.requests import request

# All but a few paths need one of the keys.


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
        # White space of Latin-1 and of Unicode that HTTP does not allow
        ("Bearer alpha\xa0", False),
        ("Bearer alpha\x85", False),
        ("Bearer \xa0alpha", False),
        ("Bearer\xa0alpha", False),
        ("Bearer alpha\x1f", False),
        ("Bearer alpha\xff", False),
        (None, False),
    ],
)
def test_only_well_formed_bearer_keys_are_granted(authorization: str | None, granted: bool) -> None:
    keys = ApiKeys(["alpha", "beta"], render_error, exempt=["/health", "/"])
    fields = {} if authorization is None else {"Authorization": authorization}
    asked = request(**fields)
    refusal = keys(asked)
    assert bool(asked.caller.tenant) is granted
    if granted:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.status == 401
    assert refusal.headers == (("WWW-Authenticate", 'Bearer realm="fastovms"'),)
    assert b"alpha" not in refusal.body


@pytest.mark.parametrize(
    ("fields", "tenant"),
    [
        ({"x_api_key": "alpha"}, "alpha"),
        ({"X_Api_Key": "beta", "Authorization": "Bearer alpha"}, "alpha"),
        ({"x_api_key": "beta", "Authorization": "Bearer gamma"}, "beta"),
        ({"x_api_key": "beta", "Authorization": "Basic alpha"}, "beta"),
        ({"x_api_key": "Bearer alpha"}, None),
        ({"x_api_key": "gamma", "Authorization": "Bearer gamma"}, None),
        ({"x_api_key": ""}, None),
    ],
)
def test_key_is_a_tenant_in_either_field(fields: dict[str, str], tenant: str | None) -> None:
    keys = ApiKeys(["alpha", "beta"], render_error)
    asked = request(**fields)
    assert (keys(asked) is None) is (tenant is not None)
    if tenant is not None:
        alike = request(Authorization=f"Bearer {tenant}")
        keys(alike)
        assert asked.caller.tenant == alike.caller.tenant


@pytest.mark.parametrize(
    ("path", "free"),
    [("/health", True), ("/health/", True), ("/", True), ("/healthy", False), ("/x/health", False)],
)
def test_exempt_paths_need_no_key(path: str, free: bool) -> None:
    keys = ApiKeys(["alpha"], render_error, exempt=["/health", "/"])
    assert (keys(request(path)) is None) is free


def test_keys_are_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbf# ours\r\nalpha\r\n\r\n  beta  \r\n  # and one more")
    assert read_api_keys(path, {"API_KEY": "gamma"}) == (["alpha", "beta"], [], {})
    assert read_api_keys(None, {"API_KEY": " gamma\n"}) == (["gamma"], [], {})
    assert read_api_keys(None, {}) == ([], [], {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n#x\n", "has no API key"),
        ("a b\n", "line 1: an API key must not contain blanks"),
        ("\xe9\n", "line 1: an API key is visible"),
        (
            "a\nb requests-per-hour=3\n",
            "line 2: an API key must not contain blanks; only admin and limits",
        ),
        ("b tokens-per-day=many\n", "line 1: tokens-per-day must be an integer .*'many'"),
        ("b tokens-per-day=-1\n", "tokens-per-day must be an integer"),
        ("b tokens-per-day=1 tokens-per-day=2\n", "tokens-per-day is given twice"),
    ],
)
def test_malformed_key_file_is_a_configuration_error(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_api_keys(path, {})
    assert "a b" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_api_keys(tmp_path / "none", {})
    with pytest.raises(ConfigurationError, match="no API key"):
        ApiKeys([], render_error)


def test_each_key_is_a_tenant_and_those_of_operators_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alpha admin\nbeta\n")
    known = read_api_keys(path, {}, ["gamma"])
    assert known == (["gamma", "alpha", "beta"], ["alpha"], {})
    keys = ApiKeys(known.every, render_error, admins=known.admins)
    tenants = set()
    for key, is_admin in (("alpha", True), ("beta", False), ("gamma", False)):
        asked = request(Authorization=f"Bearer {key}")
        assert keys(asked) is None
        assert asked.caller.is_admin is is_admin
        assert key not in asked.caller.tenant
        tenants.add(asked.caller.tenant)
    assert len(tenants) == 3
    path.write_text("alpha administrator\n")
    with pytest.raises(ConfigurationError, match="only admin and limits"):
        read_api_keys(path, {})


def test_limits_of_a_key_replace_the_usual_ones(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(
        "a\nb  admin requests-per-minute=0\nc tokens-per-day=1m requests-per-minute=2\n"
    )
    known = read_api_keys(path, {}, ["d"], KeyLimits(requests_per_minute=60))
    assert (known.every, known.admins) == (["d", "a", "b", "c"], ["b"])
    assert known.limits == {"d": (60, 0, 0), "a": (60, 0, 0), "c": (2, 0, 1_000_000)}


def test_limits_without_keys_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--tokens-per-day limits API keys, and this"):
        read_api_keys(None, {}, usual=KeyLimits(tokens_per_day=5))


# Host names that lead to the server but do not belong to it.


CHECK = HostCheck({"box", "box.lan", "LLM.example."}, render_error)


def host_check_request(host: str | None, client: str = "127.0.0.1:1") -> Request:
    named = [] if host is None else [("Host", host)]
    return Request("GET", "/v1/x", headers=Headers(named), client=client)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8000", "192.0.2.7:80", "[::1]", "[::1]:8000", "127.1:8000",
        "localhost", "localhost:8000", "LocalHost:", "localhost.", "ui.localhost:8000", "box",
        "Box:8000", "box.lan", "box.lan.:1", "llm.example", "LLM.EXAMPLE:443", "", None,
    ],
)  # fmt: skip
def test_own_host_names_are_accepted(host: str | None) -> None:
    assert CHECK(host_check_request(host)) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "notlocalhost", "localhost.evil.example", "box.evil",
        "127.0.0.1.evil.example", "127.0.0.1.nip.io:8000", "xbox", "a", "llm.example..evil",
        "127.0.0.256", "%6cocalhost", "127.0.0.1%2eevil",
    ],
)  # fmt: skip
def test_foreign_host_names_are_refused_with_a_hint(host: str) -> None:
    answer = CHECK(host_check_request(host))
    assert answer is not None
    assert answer.status == 421
    assert f"start it with --allowed-hosts {host.partition(':')[0]}".encode() in answer.body
    assert CHECK(host_check_request(host, client="")) is None, "no page can reach a Unix socket"


def test_host_check_remembers_few_names() -> None:
    check = HostCheck(set(), render_error)
    for host in [f"n{number}.localhost" for number in range(200)] + ["x" * 300 + ".localhost"]:
        assert check(host_check_request(host)) is None
        assert check(host_check_request(host)) is None
    assert len(check._passed) == 64
    assert max(map(len, check._passed)) < 300


def test_host_check_that_does_not_apply_refuses_no_host() -> None:
    applies = False
    check = HostCheck(set(), render_error, lambda: applies)
    assert check(host_check_request("evil.example")) is None
    applies = True
    assert check(host_check_request("evil.example")) is not None


def test_machine_names_include_aliases_of_the_hosts_file(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "127.0.0.1 localhost\n"
        "127.0.1.1\tBox.lan  box  llm # box.comment\n"
        "# 127.0.0.1 box box.old\n"
        "127.0.0.1 ads.example\n\n"
        "::1 box ip6-box\n"
    )
    assert machine_names("Box", hosts) == {"box", "box.lan", "llm", "ip6-box"}
    assert machine_names("box.lan", tmp_path / "none") == {"box", "box.lan"}
    assert machine_names("", tmp_path / "none") == set()


# Requests from pages of other sites, recognised by the browser's header fields.


HOST = "127.0.0.1:49623"
OWN, PORT, SITE = "http://127.0.0.1:49623", "http://127.0.0.1:40457", "http://evil.example:40457"

# As Chromium 156 sends them.
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
        ("POST", LINK, None, False),
        ("HEAD", NO_CORS, None, False),
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
def test_page_of_another_origin_is_refused_unless_the_policy_allows_it(
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
        # Older browsers, and browsers of a remote server, send fewer fields.
        if has_origin:
            assert refused(policy, method, {}, origin=given, content_type=content_type)
    is_form = content_type is not None and content_type != "application/json"
    for policy in (CorsPolicy("*"), CorsPolicy(f"https://app.example, {origin}")):
        if not has_origin and not policy.any_origin:
            continue  # no browser sends which page it is
        expected = is_form and site == "cross-site"
        assert expected is refused(
            policy, method, fields, origin=given, site=site, content_type=content_type
        )


@pytest.mark.parametrize("origin", ["null", "", "http://127.0.0.1", f"{OWN}/", "http://evil"])
def test_malformed_or_foreign_origins_are_refused(origin: str) -> None:
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
        ("GET", LINK, None, "none"),  # a typed address
        ("GET", LINK, None, "cross-site"),  # a link
        # A proxy has replaced the Host of the browser's request.
        ("POST", FETCH, "https://llm.example", "same-origin"),
    ],
)
@pytest.mark.parametrize("content_type", [FORM, "application/json"])
def test_own_pages_and_other_clients_are_accepted(
    method: str, fields: dict[str, str], origin: str | None, site: str | None, content_type: str
) -> None:
    given = content_type if method == "POST" else None
    for origins in ("", "*", "https://app.example"):
        assert not refused(
            CorsPolicy(origins), method, fields, origin=origin, site=site, content_type=given
        )


def test_plain_origin_is_refused_by_a_tls_server() -> None:
    """A proxy may use TLS for a server without it; a page without TLS does not belong to a server
    with TLS."""
    policy = CorsPolicy("")
    assert not refused(policy, "POST", {}, origin="https://a.example", host="a.example")
    assert not refused(policy, "POST", {}, origin="https://a.example", host="a.example", tls=True)
    assert refused(policy, "POST", {}, origin="http://a.example", host="a.example", tls=True)


# The header fields that let pages of other origins call the server.


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
def test_cors_fields_follow_policy_and_origin(
    policy: CorsPolicy, origin: str | None, fields: dict[str, str]
) -> None:
    asked = request(**({} if origin is None else {"Origin": origin}))
    assert dict(policy.response_fields(asked)) == fields


def test_preflight_fields_list_allowed_methods_and_headers() -> None:
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


# Bodies with another type than JSON are refused.


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
def test_json_only_refuses_unsupported_content_types_and_encodings(
    method: str, fields: dict[str, str], allowed: bool
) -> None:
    named = {name.replace("-", "_"): value for name, value in fields.items()}
    refusal: Response | None = JsonOnly(render_error)(request(method=method, **named))
    assert (refusal is None) is allowed
    if refusal is not None:
        assert refusal.status == 415
        if "Content-Encoding" in fields:
            assert refusal.headers == (("Accept-Encoding", "identity"),)


PROXIES = "10.0.0.0/8,fd00::/8"


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1:5000", "203.0.113.9", "203.0.113.9:0"),
        ("10.0.0.1:5000", "198.51.100.7, 203.0.113.9, 10.0.0.2", "203.0.113.9:0"),
        ("10.0.0.1:5000", "203.0.113.9:4711", "203.0.113.9:0"),
        ("10.0.0.1:5000", "2001:db8::1", "[2001:db8::1]:0"),
        ("10.0.0.1:5000", "[2001:db8::1]:4711,fd00::2", "[2001:db8::1]:0"),
        ("[::ffff:10.0.0.1]:5000", "203.0.113.9", "203.0.113.9:0"),
        # If all are proxies, the farthest one.
        ("10.0.0.1:5000", "10.0.0.3, 10.0.0.2", "10.0.0.3:0"),
        # An unreadable entry ends the known part.
        ("10.0.0.1:5000", "unknown", "10.0.0.1:5000"),
        ("10.0.0.1:5000", "", "10.0.0.1:5000"),
        ("10.0.0.1:5000", "203.0.113.9, nonsense, 10.0.0.2", "10.0.0.2:0"),
        ("10.0.0.1:5000", ",".join(["203.0.113.9", *["10.0.0.2"] * 99_999]), "10.0.0.2:0"),
        # No other peer is trusted.
        ("203.0.113.1:5000", "198.51.100.7", "203.0.113.1:5000"),
        ("", "198.51.100.7", ""),
    ],
    ids=lambda value: value[:40] or "nothing",
)
def test_forwarded_client_is_the_nearest_address_beyond_trusted_proxies(
    peer: str, forwarded: str, client: str
) -> None:
    for fields in ([forwarded], forwarded.rsplit(",", 1)):  # several lines are one list
        headers = Headers([("X-Forwarded-For", field) for field in fields])
        assert ForwardedClients(PROXIES).client(peer, headers) == client


def test_forwarded_client_is_believed_of_any_proxy_or_none() -> None:
    headers = Headers([("X-Forwarded-For", "198.51.100.7, 203.0.113.9")])
    assert ForwardedClients("*").client("192.0.2.1:5000", headers) == "198.51.100.7:0"
    assert ForwardedClients(None).client("10.0.0.1:5000", headers) == "10.0.0.1:5000"
