"""Tests of the request objects of handlers."""

from __future__ import annotations

import pytest

from fastovms.http.messages import Caller, Request


@pytest.mark.parametrize(
    ("tenant", "client", "sender"),
    [
        ("", "10.0.0.1:4711", "10.0.0.1"),
        ("", "::1:4711", "::/64"),
        ("", "2001:db8:1:2:3::4:4711", "2001:db8:1:2::/64"),
        ("", "2001:db8:1:2:ffff::5:4711", "2001:db8:1:2::/64"),
        ("", "fe80::1%eth0:4711", "fe80::/64"),
        ("", "::ffff:10.0.0.1:4711", "10.0.0.1"),
        ("", "", ""),
        ("digest", "10.0.0.1:4711", "digest"),
    ],
)
def test_sender_is_the_tenant_or_the_address(tenant: str, client: str, sender: str) -> None:
    request = Request("GET", "/", client=client)
    request.caller = Caller(tenant=tenant)
    assert request.sender == sender
