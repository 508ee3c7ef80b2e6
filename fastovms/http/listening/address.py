"""Reads the addresses that an operator writes, and describes bound sockets as clients write
them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from fastovms.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """An address of TCP. A `host` of "" means every interface of both families."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host or "*", self.port)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Reads "host:port", "[ipv6]:port", "*:port" or "unix:/path".

    Raises:
        ConfigurationError: the text is none of these.
    """
    scheme, separator, path = text.partition(":")
    if scheme == "unix" and separator:
        if not path:
            raise ConfigurationError(f"address {text!r}: no path after 'unix:'")
        return UnixAddress(Path(path))
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError(
            f"address {text!r}: expected host:port, [ipv6]:port or unix:/path, port 0 to 65535"
        )
    if ":" in host and not bracketed:
        raise ConfigurationError(f"address {text!r}: write an IPv6 address in brackets")
    host = host[1:-1] if bracketed else host
    return TcpAddress("" if host == "*" else host, int(port))


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def describe(sock: socket.socket, *, tls: bool) -> str:
    """Returns a socket's own address as a client would write it: "http://127.0.0.1:8000"."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        path = name.decode(errors="replace") if isinstance(name, bytes) else name
        return f"unix:{path}"
    return f"{'https' if tls else 'http'}://{join_host_port(name[0], name[1])}"
