"""Finds out whether what a server would use can be used: directories, keys, ports, a database."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastovms.config.engine_config import EngineConfig
from fastovms.config.http_config import HttpConfig, SecurityConfig
from fastovms.config.service_config import StateConfig
from fastovms.errors import FastovmsError
from fastovms.http.listening.address import TcpAddress, parse_address
from fastovms.state.sqlite.database import IN_MEMORY
from fastovms.state.sqlite.location import default_directory
from fastovms.system.disk_cache import cache_root

_CONNECT_TIMEOUT: Final = "3"
"""Seconds for a database to answer."""


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A directory to write to.

    Attributes:
        path: None = there is to be none.
        exists: now; the server makes one that does not.
        is_writable: itself, or what is nearest above it, which must be a directory too.
        free: bytes there.
    """

    name: str
    path: Path | None
    flag: str
    exists: bool = False
    is_writable: bool = False
    free: int = 0


@dataclass(frozen=True, slots=True)
class SecretFacts:
    """A file that others must not read.

    Attributes:
        mode: its permissions; None = there is no such file, or it may not be looked at.
        is_readable: by this process.
    """

    name: str
    path: Path
    mode: int | None
    is_readable: bool


@dataclass(frozen=True, slots=True)
class AddressFacts:
    """An address to listen on. `fault`: why it cannot be had; None = it can."""

    address: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """The database of --state-url. `fault`: why it cannot be used; None = it has answered."""

    address: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class InstallationFacts:
    """All of these. `database`: None = the state is in a directory."""

    directories: tuple[DirectoryFacts, ...]
    secrets: tuple[SecretFacts, ...]
    addresses: tuple[AddressFacts, ...]
    database: DatabaseFacts | None = None


def read_installation(
    engine: EngineConfig,
    http: HttpConfig,
    security: SecurityConfig,
    state: StateConfig,
    environ: Mapping[str, str],
) -> InstallationFacts:
    """Looks at everything, and changes nothing."""
    directories = [_directory("cache", cache_root(engine.cache_dir, environ), "--cache-dir")]
    if state.enable_store and state.state_dir != IN_MEMORY:
        directory = Path(state.state_dir or default_directory(environ))
        directories.append(_directory("state", directory, "--state-dir"))
    secrets = {
        "API keys": security.api_key_file,
        "TLS key": http.tls_key or http.tls_certificate,
        "password of the state": state.password_file,
    }
    return InstallationFacts(
        tuple(directories),
        tuple(_secret(name, Path(path)) for name, path in secrets.items() if path is not None),
        tuple(map(_address, _addresses(http))),
        _database(state, environ) if state.enable_store else None,
    )


def _directory(name: str, path: Path | None, flag: str) -> DirectoryFacts:
    if path is None:
        return DirectoryFacts(name, None, flag)
    there = next((place for place in (path, *path.parents) if os.path.exists(place)), Path("/"))
    is_directory = os.path.isdir(there)
    return DirectoryFacts(
        name,
        path,
        flag,
        exists=is_directory and there == path,
        is_writable=is_directory and os.access(there, os.W_OK | os.X_OK),
        free=shutil.disk_usage(there).free,
    )


def _secret(name: str, path: Path) -> SecretFacts:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return SecretFacts(name, path, None, False)
    return SecretFacts(name, path, mode, os.access(path, os.R_OK))


def _addresses(http: HttpConfig) -> list[str]:
    first = [] if http.host is None else [f"{_bracketed(http.host or '*')}:{http.port}"]
    return [*first, *http.listen]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address(text: str) -> AddressFacts:
    """Listens there for a moment. A Unix socket is replaced by the server, so it only has to have a
    directory."""
    try:
        address = parse_address(text)
        if not isinstance(address, TcpAddress):
            directory = address.path.parent
            can_write = os.access(directory, os.W_OK | os.X_OK)
            return AddressFacts(text, None if can_write else f"{directory} cannot be written")
        family, _, _, _, place = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()
    except OSError as error:
        return AddressFacts(text, error.strerror or str(error))
    except FastovmsError as error:
        return AddressFacts(text, str(error))
    return AddressFacts(text, None)


def _database(state: StateConfig, environ: Mapping[str, str]) -> DatabaseFacts | None:
    if state.state_url is None:
        return None
    try:
        import psycopg

        from fastovms.state.postgres.server_address import read_address
    except ImportError as error:
        return DatabaseFacts("--state-url", f"{error}: pip install 'fastovms[postgres]'")
    try:
        address = read_address(state.state_url, state.password_file, environ)
        parameters = address.connection_parameters() | {"connect_timeout": _CONNECT_TIMEOUT}
        with psycopg.connect(**parameters) as connection:  # type: ignore[arg-type]
            connection.execute("SELECT 1")
    except FastovmsError as error:
        return DatabaseFacts("--state-url", str(error))
    except psycopg.Error as error:
        return DatabaseFacts(str(address), " ".join(str(error).split()))
    return DatabaseFacts(str(address), None)
