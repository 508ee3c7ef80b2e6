from __future__ import annotations

import pytest

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.parts.postgres.server_address import read_address


def test_connection_parameters_have_defaults():
    address = read_address("postgresql://me@db:6432/state?sslmode=verify-full&options=x", None, {})
    told = address.connection_parameters()
    given = {"user": "me", "host": "db", "port": "6432", "dbname": "state", "options": "x"}
    assert (given | {"sslmode": "verify-full", "connect_timeout": "3"}).items() <= told.items()
    assert int(told["tcp_user_timeout"]) > 0
    address = read_address("postgres://db/?connect_timeout=9", None, {})
    assert address.connection_parameters()["connect_timeout"] == "9"


def test_password_is_read_from_file_credential_or_url(tmp_path):
    file, credential = tmp_path / "file", tmp_path / "state-password"
    url = "postgresql://me:one@db/state"
    assert read_address(url, None, {}).connection_parameters()["password"] == "one"
    credential.write_text("two\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert read_address(url, None, environ).connection_parameters()["password"] == "two"
    file.write_text("three")
    address = read_address(url, file, environ)
    assert address.connection_parameters()["password"] == "three"
    file.write_text("four\n")
    assert address.connection_parameters()["password"] == "four"
    file.unlink()
    with pytest.raises(StateFailed, match="No such file"):
        address.connection_parameters()
    with pytest.raises(ConfigurationError, match="the password cannot be read"):
        read_address(url, file, environ)
    assert "password" not in read_address("postgresql://db", None, {}).connection_parameters()


def test_address_is_shown_without_its_password(tmp_path):
    for url in ("postgresql://me:secret@db/state", "postgresql://db/state?password=secret"):
        address = read_address(url, None, {})
        assert str(address) == "postgresql://db/state"
        assert "secret" not in repr(address)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://db/state?sslmod=x", 'invalid URI query parameter: "sslmod"'),
        ("postgresql://me:secret@db/state?sslmod=x", "not a URL that libpq understands$"),
        ("postgresql://db/?password=secret&sslmod=x", "not a URL that libpq understands$"),
        ("postgresql://me:secret@[::1/state", "not a URL that libpq understands$"),
    ],
)
def test_invalid_url_is_refused_without_its_password(url, reason):
    with pytest.raises(ConfigurationError, match=reason) as raised:
        read_address(url, None, {})
    assert "secret" not in str(raised.value)
