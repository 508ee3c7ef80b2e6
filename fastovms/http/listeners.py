"""Listening sockets: addresses, systemd socket activation, TLS."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
import ssl
import stat
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.config import HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.http.protocol import Connection
from fastovms.http.writers import ServerState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP address. A `host` of "" means every interface, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host or "*", self.port)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a Unix socket."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Parses "host:port", "[ipv6]:port", "*:port" or "unix:/path". Raises ConfigurationError if the
    text has none of these forms."""
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
    """Returns an address as host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def describe(sock: socket.socket, *, tls: bool) -> str:
    """Returns a socket's URL as a client would write it: "http://127.0.0.1:8000"."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        path = name.decode(errors="replace") if isinstance(name, bytes) else name
        return f"unix:{path}"
    return f"{'https' if tls else 'http'}://{join_host_port(name[0], name[1])}"


def is_local(sock: socket.socket) -> bool:
    """Returns whether only this machine can reach a bound socket."""
    if sock.family == socket.AF_UNIX:
        return True
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    address = ipaddress.ip_address(sock.getsockname()[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


_FIRST_FD = 3
_LISTEN_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def inherited_sockets(environ: MutableMapping[str, str], pid: int) -> list[socket.socket]:
    """Returns the listening sockets passed by systemd, and removes the variables from the
    environment, so that child processes do not use the sockets. Raises ConfigurationError if a
    descriptor is not a listening socket."""
    values = {name: environ.pop(name, "") for name in _LISTEN_VARIABLES}
    if values["LISTEN_PID"] != str(pid) or not values["LISTEN_FDS"].isdecimal():
        return []
    sockets = []
    for fd in range(_FIRST_FD, _FIRST_FD + int(values["LISTEN_FDS"])):
        try:
            os.set_inheritable(fd, False)
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise ConfigurationError(
                f"the inherited descriptor {fd} is not a stream socket: {error.strerror}"
            ) from None
        if sock.type != socket.SOCK_STREAM:
            sock.detach()
            raise ConfigurationError(f"the inherited descriptor {fd} is not a stream socket")
        sockets.append(sock)
    return sockets


class Notifier:
    """Reports the state to the service manager (systemd). Does nothing without a service manager,
    or on errors.

    Attributes:
        watchdog_interval: seconds between two calls of `watchdog`, half of systemd's limit; None =
            no watchdog.
    """

    def __init__(self, environ: MutableMapping[str, str], pid: int) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        self.watchdog_interval: float | None = None
        microseconds = environ.get("WATCHDOG_USEC", "")
        if microseconds.isdecimal() and environ.get("WATCHDOG_PID", str(pid)) == str(pid):
            self.watchdog_interval = int(microseconds) / 2e6

    def ready(self, status: str = "") -> None:
        """Reports that the server is ready, or that a reload is complete."""
        self._send("READY=1", *self._new_status(status))

    def status(self, text: str) -> None:
        """Sets the line that `systemctl status` shows."""
        lines = self._new_status(text)
        if lines:
            self._send(*lines)

    def reloading(self) -> None:
        """Reports that a reload begins (Type=notify-reload); `ready` ends the reload."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={microseconds}")

    def stopping(self, status: str = "") -> None:
        """Reports that the server is shutting down."""
        self._send("STOPPING=1", *self._new_status(status))

    def watchdog(self) -> None:
        """Reports that the server makes progress. Must not be called while it hangs."""
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Asks for this many more seconds for a long start or stop. Repeat the call before they are
        over."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _new_status(self, text: str) -> list[str]:
        line = " ".join(text.split())  # a newline would start another assignment
        if not line or line == self._status:
            return []
        self._status = line
        return [f"STATUS={line}"]

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            logger.debug("systemd was not notified of %s: %s", assignments, error)


HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a handshake may take."""
SHUTDOWN_TIMEOUT = 3600.0
"""Seconds that the end of a TLS connection may take, including the last answer; `Wire` has a
shorter deadline of its own."""


class TlsCredentials:
    """A certificate chain and its key, and the TLS context that uses them. Raises
    ConfigurationError if a file cannot be read, or key and certificate do not match.

    Args:
        certificate: path of a PEM file with the chain.
        key: path of a PEM file with the key; None = the key is in the certificate's file.
    """

    def __init__(self, certificate: str, key: str | None) -> None:
        self._certificate = certificate
        self._key = key
        self.context = self._new_context()

    def reload(self) -> None:
        """Reads the files again, for connections made from now on. Raises ConfigurationError if the
        files are invalid; the old ones stay in use."""
        self._new_context()  # a failed load would leave the live context without a usable key
        self._load(self.context)

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            # An encrypted key would otherwise ask for its passphrase on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except OSError as error:  # ssl.SSLError is one too
            files = self._certificate if self._key is None else f"{self._certificate}, {self._key}"
            reason = error.strerror or str(error)
            raise ConfigurationError(f"cannot use the TLS files {files}: {reason}") from None


_ACCEPTED_AT_ONCE: Final = 8
"""The number of connections that are accepted at once before the loop handles other events."""

_PAUSE: Final = 0.2
"""Seconds without accepting when the process has no descriptors or memory left."""

_LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines about connections that cannot be accepted."""


class _AcceptedConnection(Connection):
    """A connection that reports the end of its TLS handshake at once."""

    def __init__(self, state: ServerState, on_made: Callable[[], None]) -> None:
        super().__init__(state)
        self._on_made = on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._on_made()
        super().connection_made(transport)


class Acceptor:
    """Accepts connections on listening sockets until it is closed.

    uvloop's own servers close their socket if accepting fails for lack of descriptors or memory,
    and report a TLS connection only after its handshake.

    Handshakes and connections share one limit. If it is reached, the oldest handshake is cancelled:
    it is hardly ever a legitimate client's, since a handshake takes milliseconds.

    Args:
        credentials: the TLS certificate and key; None = no TLS.
    """

    def __init__(self, state: ServerState, credentials: TlsCredentials | None = None) -> None:
        self._state = state
        self._loop = state.loop
        self._tls: dict[str, Any] = {}
        if credentials is not None:
            self._tls = {
                "ssl": credentials.context,
                "ssl_handshake_timeout": HANDSHAKE_TIMEOUT,
                "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT,
            }
        self._listening: set[socket.socket] = set()
        self._beginning: dict[asyncio.Task[None], None] = {}
        self._next_log_at = 0.0

    @property
    def num_handshakes(self) -> int:
        """The number of accepted connections that have not finished their TLS handshake."""
        return len(self._beginning) if self._tls else 0

    def listen(self, sock: socket.socket) -> None:
        """Begins to accept connections on a bound, non-blocking socket. Raises OSError if listening
        failed."""
        sock.listen(self._state.config.backlog)
        self._listening.add(sock)
        self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Stops accepting; running handshakes continue."""
        for sock in self._listening:
            self._loop.remove_reader(sock)
        self._listening.clear()

    async def wait_until_done(self) -> None:
        """Waits until no handshake is running."""
        if self._beginning:
            await asyncio.wait(list(self._beginning))

    async def cut(self) -> None:
        """Cancels all handshakes."""
        for task in self._beginning:
            task.cancel()
        await self.wait_until_done()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (OSError, MemoryError) as error:
                self._pause(listening, error)
                return
            sock.setblocking(False)
            if self._tls and len(self._beginning) >= self._state.max_handshakes:
                oldest = next(iter(self._beginning))
                del self._beginning[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._begin(sock))
            self._beginning[task] = None
            task.add_done_callback(partial(self._on_done, sock))

    def _pause(self, listening: socket.socket, error: BaseException) -> None:
        if (now := self._loop.time()) >= self._next_log_at:
            self._next_log_at = now + _LOG_INTERVAL
            logger.error(
                "cannot accept connections: %s; new connections wait", error or "no memory"
            )
        self._loop.remove_reader(listening)
        self._loop.call_later(_PAUSE, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    async def _begin(self, sock: socket.socket) -> None:
        """Performs the TLS handshake, if any, and calls the protocol's `connection_made` if that
        succeeds."""
        task = asyncio.current_task()
        assert task is not None
        on_made = partial(self._beginning.pop, task, None)
        try:
            await self._loop.connect_accepted_socket(
                lambda: _AcceptedConnection(self._state, on_made), sock, **self._tls
            )
        except OSError as error:  # ssl.SSLError is one too
            logger.debug("a connection could not be opened: %s", error)

    def _on_done(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.pop(task, None)
        if task.cancelled():
            sock.close()  # no transport owns the socket if the task was cancelled before it began
        elif (error := task.exception()) is not None:
            logger.error("a connection could not be opened", exc_info=error)


_MAX_UNIX_PATH = 107  # unix(7), less the final zero


@dataclass(slots=True)
class Listener:
    """A bound socket.

    Attributes:
        url: its address, for people and clients.
        path: the file of a Unix socket bound here, to be removed at the end; None = none.
    """

    sock: socket.socket
    url: str
    path: Path | None = None
    inode: int = 0

    def remove_path(self) -> None:
        """Removes the Unix socket's file, unless another server has replaced it."""
        if self.path is None:
            return
        try:
            if self.path.lstat().st_ino == self.inode:
                self.path.unlink()
        except OSError as error:
            logger.debug("%s was not removed: %s", self.path, error)


def bind_all(config: HttpConfig, inherited: Sequence[socket.socket] = ()) -> list[Listener]:
    """Binds every address of the configuration, or uses the inherited sockets instead. If an
    address is not available, closes all sockets and raises ConfigurationError."""
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


class BoundSockets(NamedTuple):
    """The sockets of a server, before it listens.

    Attributes:
        are_inherited: whether systemd passed them; they are then already listening.
    """

    listeners: Sequence[Listener]
    are_inherited: bool

    def close(self) -> None:
        """Closes the sockets unless a server has closed them."""
        for listener in self.listeners:
            listener.sock.close()
            listener.remove_path()


def bind_sockets(config: HttpConfig, environ: MutableMapping[str, str], pid: int) -> BoundSockets:
    """Returns the sockets passed by systemd, or binds those of the configuration. Call it before
    slow work, so that an address in use is found at once. Raises ConfigurationError if an address
    is not available, or an inherited descriptor is not a socket."""
    inherited = inherited_sockets(environ, pid)
    return BoundSockets(bind_all(config, inherited), bool(inherited))


_MOST_SPARE: Final = 512
_LEAST_SPARE: Final = 32
"""The number of descriptors reserved for other files: models, the state, uploads, child processes
and logs."""


def raise_file_limit(max_connections: int) -> int:
    """Raises the limit of open files to the hard limit. Returns the number of connections that it
    allows, at most `max_connections`, and logs a warning if it is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return max_connections
    num_open = len(os.listdir("/proc/self/fd"))
    num_spare = min(_MOST_SPARE, max(_LEAST_SPARE, (hard - num_open) // 4))
    most = max(1, hard - num_open - num_spare)
    if most >= max_connections:
        return max_connections
    logger.warning(
        "connections: at most %d at a time, not %d, because the limit of open files is %d: raise "
        "it (ulimit -n, or LimitNOFILE of systemd)",
        most,
        max_connections,
        hard,
    )
    return most


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
                continue  # a host without IPv6 may still resolve names to IPv6 addresses
            raise _cannot_listen(address, error) from None
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if config.reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                # An IPv6 socket accepts IPv6 only, because IPv4 has a socket of its own.
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
    """Binds under a temporary name and then renames the socket, so that clients find either the old
    socket or a new one that listens with the right permissions."""
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
    """Raises ConfigurationError if a path is in use: only a socket without a listener may be
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
            pass  # a server listens there: its queue is full
        except OSError as error:
            raise _cannot_listen(UnixAddress(path), error) from None
    raise ConfigurationError(f"cannot listen on unix:{path}: another server answers there")


def _cannot_listen(address: Address, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot listen on {address}: {error.strerror or error}")
