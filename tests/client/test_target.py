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
        (
            "http://b\xfccher.example",
            Target("xn--bcher-kva.example", 80, "/v1"),
            "xn--bcher-kva.example:80",
        ),
    ],
)
def test_addresses(url: str, target: Target, authority: str) -> None:
    assert Target.from_url(url) == target
    assert target.authority == authority


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://a", "http://", "http://a:port", "http://a..b", "http://.a",
     f"http://{'a' * 64}.b", "http://\udce9"],
)  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--compare.*"):
        Target.from_url(url, "--compare")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://a/v1?key=b", "query"),
        ("http://a/v1#b", "fragment"),
        ("http://b:secret@a", "user name"),
        ("http://:secret@a", "user name"),
    ],
)
def test_what_requests_would_not_have_is_refused_by_name(url: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^URL must have no {what}: ") as caught:
        Target.from_url(url)
    assert "secret" not in str(caught.value)
