"""Requests need one of the keys, but for a few paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.http.gates.auth import ApiKeys, read_api_keys
from tests.http.conftest import render_error
from tests.http.gates.requests import request


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
        # Blanks of Latin-1 and of Unicode that are none of HTTP's
        ("Bearer alpha\xa0", False),
        ("Bearer alpha\x85", False),
        ("Bearer \xa0alpha", False),
        ("Bearer\xa0alpha", False),
        ("Bearer alpha\x1f", False),
        ("Bearer alpha\xff", False),
        (None, False),
    ],
)
def test_api_keys(authorization: str | None, granted: bool) -> None:
    keys = ApiKeys(["alpha", "beta"], render_error, exempt=["/health", "/"])
    fields = {} if authorization is None else {"Authorization": authorization}
    asked = request(**fields)
    refusal = keys(asked)
    assert bool(asked.tenant) is granted
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
def test_keys_in_a_field_of_their_own(fields: dict[str, str], tenant: str | None) -> None:
    keys = ApiKeys(["alpha", "beta"], render_error)
    asked = request(**fields)
    assert (keys(asked) is None) is (tenant is not None)
    if tenant is not None:
        alike = request(Authorization=f"Bearer {tenant}")
        keys(alike)
        assert asked.tenant == alike.tenant


@pytest.mark.parametrize(
    ("path", "free"),
    [("/health", True), ("/health/", True), ("/", True), ("/healthy", False), ("/x/health", False)],
)
def test_exempt_paths(path: str, free: bool) -> None:
    keys = ApiKeys(["alpha"], render_error, exempt=["/health", "/"])
    assert (keys(request(path)) is None) is free


def test_each_key_is_a_tenant() -> None:
    keys = ApiKeys(["alpha", "beta"], render_error)
    asked = [request(Authorization=f"Bearer {key}") for key in ("alpha", "beta", "beta")]
    assert all(keys(one) is None for one in asked)
    first, second, third = (one.tenant for one in asked)
    assert first != second == third
    assert "alpha" not in first


def test_no_keys() -> None:
    with pytest.raises(ConfigurationError, match="no API key"):
        ApiKeys([], render_error)


def test_keys_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbf# ours\r\nalpha\r\n\r\n  beta  \r\n  # and one more")
    assert read_api_keys(path, {"API_KEY": "gamma"}) == (["alpha", "beta"], [])
    assert read_api_keys(None, {"API_KEY": " gamma\n"}) == (["gamma"], [])
    assert read_api_keys(None, {}) == ([], [])


@pytest.mark.parametrize(
    ("text", "message"), [("\n#x\n", "holds no"), ("a b\n", "visible"), ("\xe9\n", "visible")]
)
def test_bad_key_files(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_api_keys(path, {})
    assert "a b" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_api_keys(tmp_path / "none", {})


def test_the_keys_of_operators_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alpha admin\nbeta\n")
    known = read_api_keys(path, {}, ["gamma"])
    assert known == (["gamma", "alpha", "beta"], ["alpha"])
    keys = ApiKeys(known.every, render_error, admins=known.admins)
    for key, is_admin in (("alpha", True), ("beta", False), ("gamma", False)):
        asked = request(Authorization=f"Bearer {key}")
        assert keys(asked) is None
        assert asked.is_admin is is_admin
    path.write_text("alpha administrator\n")
    with pytest.raises(ConfigurationError, match="only the word admin may follow"):
        read_api_keys(path, {})
