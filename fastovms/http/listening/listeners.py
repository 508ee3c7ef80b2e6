"""Binds sockets: TCP of both families, Unix sockets that replace only dead ones, and those that
systemd hands over."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastovms.config.http_config import HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.http.listening.address import (
    Address,
    TcpAddress,
    UnixAddress,
    describe,
    parse_address,
)

logger = logging.getLogger(__name__)

_MAX_UNIX_PATH = 107  # unix(7), less the final zero


@dataclass(slots=True)
class Listener:
    """A bound socket.

    Attributes:
        url: its address, for people and clients.
        path: the file of a Unix socket bound here, to be removed at the end.
    """

    sock: socket.socket
    url: str
    path: Path | None = None
    inode: int = 0

    def remove_path(self) -> None:
        """Removes the Unix socket's file, unless another server has put its own there."""
        if self.path is None:
            return
        try:
            if self.path.lstat().st_ino == self.inode:
                self.path.unlink()
        except OSError as error:
            logger.debug("%s was not removed: %s", self.path, error)


def bind_all(config: HttpConfig, inherited: Sequence[socket.socket] = ()) -> list[Listener]:
    """Binds every address of the configuration, or takes the inherited sockets instead.

    Raises:
        ConfigurationError: an address cannot be had. Nothing stays bound then.
    """
    tls = config.tls_certificate is not None
    listeners: list[Listener] = []
    try:
        if inherited:
            for sock in inherited:
                sock.setblocking(False)
                listeners.append(Listener(sock, describe(sock, tls=tls)))
            return listeners
        addresses: list[Address] = []
        if config.host is not None:
            addresses.append(TcpAddress(config.host, config.port))
        addresses += [parse_address(text) for text in config.listen]
        for address in addresses:
            if isinstance(address, UnixAddress):
                listeners.append(_bind_unix(address.path, config))
            else:
                listeners += _bind_tcp(address, config, tls=tls)
    except BaseException:
        for listener in listeners:
            listener.sock.close()
            listener.remove_path()
        raise
    return listeners


def raise_file_limit(needed: int) -> None:
    """Raises the limit of open files to the hard one, and warns when even that is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < needed:
        logger.warning("%d open files are allowed, but %d may be needed", hard, needed)


def _bind_tcp(address: TcpAddress, config: HttpConfig, *, tls: bool) -> list[Listener]:
    listeners: list[Listener] = []
    port = address.port
    try:
        found = socket.getaddrinfo(
            address.host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise _cannot_listen(address, error) from None
    for family, kind, protocol, _, name in dict.fromkeys(found):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                continue  # a host without IPv6 still resolves names to it
            raise _cannot_listen(address, error) from None
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if config.reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                # Both families have a socket of their own where both are wanted.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # One free port for both families, not one each.
            sock.bind((name[0], port, *name[2:]))
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6 and len(found) > 1:
                continue
            for listener in listeners:
                listener.sock.close()
            raise _cannot_listen(address, error) from None
        port = sock.getsockname()[1]
        listeners.append(Listener(sock, describe(sock, tls=tls)))
    if not listeners:
        raise ConfigurationError(f"cannot listen on {address}: no usable address")
    return listeners


def _bind_unix(path: Path, config: HttpConfig) -> Listener:
    """Binds under a temporary name and moves the finished socket into place, so that clients find
    either the old one or one that listens with the right mode."""
    address = UnixAddress(path)
    _check_unix_path(path)
    temporary = path.with_name(f".{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        temporary.unlink(missing_ok=True)
        sock.bind(str(temporary))
        temporary.chmod(config.unix_mode)
        sock.listen(config.backlog)
        inode = temporary.stat().st_ino
        temporary.rename(path)
    except OSError as error:
        sock.close()
        temporary.unlink(missing_ok=True)
        raise _cannot_listen(address, error) from None
    return Listener(sock, str(address), path, inode)


def _check_unix_path(path: Path) -> None:
    """Raises ConfigurationError for a path that is taken: only a socket that nobody answers is
    replaced."""
    if len(os.fsencode(path)) > _MAX_UNIX_PATH:
        raise ConfigurationError(
            f"cannot listen on unix:{path}: too long, {_MAX_UNIX_PATH} bytes at most"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_listen(UnixAddress(path), error) from None
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"cannot listen on unix:{path}: it exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # its queue is full, so there is one
        except OSError as error:
            raise _cannot_listen(UnixAddress(path), error) from None
    raise ConfigurationError(f"cannot listen on unix:{path}: another server answers there")


def _cannot_listen(address: Address, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot listen on {address}: {error.strerror or error}")
