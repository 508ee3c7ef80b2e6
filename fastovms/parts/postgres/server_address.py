"""Reads the address of the PostgreSQL server and its password."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from fastovms.errors import ConfigurationError, StateFailed

_CREDENTIAL: Final = "state-password"
"""The name of the systemd credential with the password."""

_DEFAULTS: Final = {
    "application_name": "fastovms",
    "connect_timeout": "3",
    # Detect a dead host on an idle connection (keepalives), and while data is sent (timeout).
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "8000",
}
"""Default connection parameters of libpq (PostgreSQL documentation, 32.1.2), which the URL may
override."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a database on a PostgreSQL server.

    Attributes:
        parameters: libpq's connection parameters, without the password in the file.
        password_file: the file with the password; None = libpq's own sources.
    """

    parameters: Mapping[str, str] = field(repr=False)
    password_file: Path | None = None

    def connection_parameters(self) -> dict[str, str]:
        """Returns libpq's connection parameters with the password. The password file is read each
        time, because passwords change. Raises StateFailed if the file cannot be read."""
        if self.password_file is None:
            return dict(self.parameters)
        try:
            password = self.password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise StateFailed(f"the password cannot be read: {error}") from None
        return {**self.parameters, "password": password}

    def __str__(self) -> str:
        """Returns the address without the password."""
        host, name = self.parameters.get("host", "localhost"), self.parameters.get("dbname", "")
        return f"postgresql://{host}/{name}"


def read_address(url: str, password_file: Path | None, environ: Mapping[str, str]) -> ServerAddress:
    """Parses a connection URL in libpq's format (PostgreSQL documentation, 32.1.1.2).

    The password comes from `password_file`, else from systemd's credential `state-password`, else
    from the URL or libpq's own sources. Raises ConfigurationError if the URL is invalid or the file
    cannot be read.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(url)
    except ProgrammingError as error:
        # libpq's reason quotes the URL.
        reason = "" if may_have_password(url) else f": {' '.join(str(error).split())}"
        raise ConfigurationError(
            f"--state-url is not a URL that libpq understands{reason}"
        ) from None
    parameters = {**_DEFAULTS, **{name: str(value) for name, value in given.items()}}
    if password_file is None and (directory := environ.get("CREDENTIALS_DIRECTORY")):
        credential = Path(directory, _CREDENTIAL)
        password_file = credential if credential.exists() else None
    address = ServerAddress(parameters, password_file)
    try:
        address.connection_parameters()
    except StateFailed as error:
        raise ConfigurationError(str(error)) from None
    return address


@contextmanager
def extra_needed() -> Iterator[None]:
    """Converts an ImportError within the context to a ConfigurationError that names the missing
    extra."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"PostgreSQL needs psycopg ({error}): pip install '.[postgres]'"
        ) from None


def may_have_password(url: str) -> bool:
    """Returns whether any part of the URL may be a password."""
    try:
        parts = urlsplit(url)
        return ":" in parts.netloc.rpartition("@")[0] or "password" in parse_qs(parts.query)
    except ValueError:
        return True
