from __future__ import annotations

import pytest

from fastovms.client.target import Target
from fastovms.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000, "/v1"), "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", Target("127.0.0.1", 8000, "/v1"), "127.0.0.1:8000"),
        ("http://[::1]/v3", Target("::1", 80, "/v3"), "[::1]:80"),
        ("https://a.example/x/v1", Target("a.example", 443, "/x/v1", True), "a.example:443"),
    ],
)
def test_addresses(url: str, target: Target, authority: str) -> None:
    assert Target.from_url(url) == target
    assert target.authority == authority


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://a", "http://", "http://a:port"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--compare.*"):
        Target.from_url(url, "--compare")
