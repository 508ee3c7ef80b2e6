"""Addresses as an operator writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.http.listening.address import TcpAddress, UnixAddress, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", TcpAddress("127.0.0.1", 80)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:8000", TcpAddress("::1", 8000)),
        ("*:8000", TcpAddress("", 8000)),
        (":8000", TcpAddress("", 8000)),
        ("unix:/run/x.sock", UnixAddress(Path("/run/x.sock"))),
    ],
)
def test_addresses(text: str, address: object) -> None:
    parsed = parse_address(text)
    assert parsed == address
    assert parse_address(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text", ["", "8000", "host", "host:", "host:x", "host:65536", "::1:80", "unix:", "a:-1", "a:٣"]
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"address '.*'"):
        parse_address(text)
