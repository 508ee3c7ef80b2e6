from __future__ import annotations

import pytest

from fastovms.http.forwarded import ForwardedClients
from fastovms.http.messages import Headers

PROXIES = "10.0.0.0/8,fd00::/8"


@pytest.mark.parametrize(
    ("peer", "told", "client"),
    [
        ("10.0.0.1:5000", "203.0.113.9", "203.0.113.9:0"),
        ("10.0.0.1:5000", "198.51.100.7, 203.0.113.9, 10.0.0.2", "203.0.113.9:0"),
        ("10.0.0.1:5000", "203.0.113.9:4711", "203.0.113.9:0"),
        ("10.0.0.1:5000", "2001:db8::1", "[2001:db8::1]:0"),
        ("10.0.0.1:5000", "[2001:db8::1]:4711,fd00::2", "[2001:db8::1]:0"),
        ("[::ffff:10.0.0.1]:5000", "203.0.113.9", "203.0.113.9:0"),
        # Where all are proxies, the farthest.
        ("10.0.0.1:5000", "10.0.0.3, 10.0.0.2", "10.0.0.3:0"),
        # What cannot be read ends what is known.
        ("10.0.0.1:5000", "unknown", "10.0.0.1:5000"),
        ("10.0.0.1:5000", "", "10.0.0.1:5000"),
        ("10.0.0.1:5000", "203.0.113.9, nonsense, 10.0.0.2", "10.0.0.2:0"),
        ("10.0.0.1:5000", ",".join(["203.0.113.9", *["10.0.0.2"] * 99_999]), "10.0.0.2:0"),
        # Nobody else is believed.
        ("203.0.113.1:5000", "198.51.100.7", "203.0.113.1:5000"),
        ("", "198.51.100.7", ""),
    ],
    ids=lambda value: value[:40] or "nothing",
)
def test_who_asks(peer: str, told: str, client: str) -> None:
    headers = Headers([("X-Forwarded-For", told)])
    assert ForwardedClients(PROXIES).client(peer, headers) == client


def test_several_lines_are_one_list() -> None:
    headers = Headers([("X-Forwarded-For", "203.0.113.9"), ("x-forwarded-for", "10.0.0.2")])
    assert ForwardedClients(PROXIES).client("10.0.0.1:1", headers) == "203.0.113.9:0"


@pytest.mark.parametrize("headers", [Headers(), Headers([("X-Forwarded-For", "203.0.113.9")])])
def test_without_proxies_it_is_the_peer(headers: Headers) -> None:
    assert ForwardedClients(None).client("10.0.0.1:5000", headers) == "10.0.0.1:5000"


def test_any_proxy_is_believed_where_asked_to() -> None:
    headers = Headers([("X-Forwarded-For", "198.51.100.7, 203.0.113.9")])
    assert ForwardedClients("*").client("192.0.2.1:5000", headers) == "198.51.100.7:0"
