"""Says where a server is, by the URL that an operator gives."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from fastovms.errors import ConfigurationError

_PORTS: Final = {"http": 80, "https": 443}


class Target(NamedTuple):
    """The API of a server.

    Attributes:
        host: name or address, in ASCII (RFC 5891).
        path: what all its paths begin with, such as "/v1".
    """

    host: str
    port: int
    path: str
    is_tls: bool = False

    @classmethod
    def from_url(cls, url: str, name: str = "URL") -> Target:
        """Reads the base URL of an API; one without a path means its `/v1`.

        Args:
            name: of the argument, for the error.

        Raises:
            ConfigurationError: it is no such address.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            # As `create_connection` encodes it, which UnicodeError would come out of (a..b).
            host = None if parts.hostname is None else parts.hostname.encode("idna").decode()
        except ValueError as error:
            raise ConfigurationError(f"{name} {url!r}: {error}") from None
        if parts.scheme not in _PORTS or host is None:
            raise ConfigurationError(
                f"{name} must be http://HOST:PORT or https://HOST:PORT, with or without a path "
                f"such as /v1, not {url!r}"
            )
        unused = {
            "query": parts.query,
            "fragment": parts.fragment,
            "user name": parts.username or parts.password,
        }
        for what, value in unused.items():
            if value:
                raise ConfigurationError(f"{name} must have no {what}: requests would not have it")
        return cls(
            host,
            _PORTS[parts.scheme] if port is None else port,
            parts.path.rstrip("/") or "/v1",
            parts.scheme == "https",
        )

    @property
    def authority(self) -> str:
        """Host and port as they stand in `Host` (RFC 9110, 7.2)."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
