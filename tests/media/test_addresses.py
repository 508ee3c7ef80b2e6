from __future__ import annotations

import pytest

from fastovms.media.addresses import is_public


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700::1111", "2002:808:808::1", "64:ff9b::808:808", "2a00:1450::5%eth0"],
)
def test_public(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "::10.0.0.1",
        "2002:a00:1::1",
        "2002:7f00:1::1",
        "64:ff9b::a00:1",
        "64:ff9b::7f00:1",
        "2001:0:a00:1::1",
        "localhost",
        "",
        "8.8.8",
    ],
)
def test_not_public(address):
    assert not is_public(address)
