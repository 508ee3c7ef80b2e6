"""Tests of `fastovms/http/listeners.py`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastovms.errors import ConfigurationError
from fastovms.http import listeners, writers
from fastovms.http.listeners import (
    Notifier,
    TcpAddress,
    UnixAddress,
    inherited_sockets,
    is_local,
    parse_address,
    raise_file_limit,
)
from fastovms.http.messages import Request, Response
from tests.http.client import talk
from tests.http.conftest import Start
from tests.http.more_cases import get
from tests.paths import ROOT, TLS

# Addresses in the operator's notation.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", TcpAddress("127.0.0.1", 80)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:8000", TcpAddress("::1", 8000)),
        ("*:8000", TcpAddress("", 8000)),
        (":8000", TcpAddress("", 8000)),
        ("unix:/run/x.sock", UnixAddress(Path("/run/x.sock"))),
    ],
)
def test_address_text_is_parsed_and_round_trips(text: str, address: object) -> None:
    parsed = parse_address(text)
    assert parsed == address
    assert parse_address(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text", ["", "8000", "host", "host:", "host:x", "host:65536", "::1:80", "unix:", "a:-1", "a:٣"]
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"address '.*'"):
        parse_address(text)


@pytest.mark.parametrize(
    ("family", "address", "local"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "127.9.9.9", True),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::1", True),
        (socket.AF_INET6, "::ffff:127.0.0.1", True),
        (socket.AF_INET6, "::", False),
    ],
)
def test_only_loopback_sockets_are_local(family: int, address: str, local: bool) -> None:
    with socket.socket(family) as sock:
        sock.bind((address, 0))
        assert is_local(sock) is local


def test_unix_socket_is_local() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        assert is_local(sock)


# A real NOTIFY_SOCKET and inherited descriptors.


CREDENTIALS = {"tls_certificate": str(TLS / "first.crt"), "tls_key": str(TLS / "first.key")}
_CHILD = """
import asyncio, os, sys
from fastovms.config import HttpConfig
from fastovms.http.messages import Response
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.http.listeners import Notifier, bind_sockets

async def main():
    os.environ["LISTEN_PID"] = str(os.getpid())
    router = Router()
    router.add("GET", "/", lambda request: Response(200, b"child"))
    server = HttpServer(
        HttpConfig(port=1),
        Dispatcher(router, lambda request, status, message: Response(status)),
        bound=bind_sockets(HttpConfig(port=1), os.environ, os.getpid()),
    )
    await server.start()
    notifier = Notifier(os.environ, os.getpid())
    notifier.ready(" ".join(server.addresses))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    notifier.stopping()
    await server.drain(1)
    await server.close()

asyncio.run(main())
"""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(60)
        yield sock


def notifier(manager: socket.socket, **environ: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": manager.getsockname(), **environ}, os.getpid())


def test_notifier_sends_each_state_to_the_manager(manager: socket.socket) -> None:
    service = notifier(manager)
    service.status("loading\nthe model")
    assert manager.recv(100) == b"STATUS=loading the model"
    service.extend_timeout(2.5)
    assert manager.recv(100) == b"EXTEND_TIMEOUT_USEC=2500000"
    service.status("loading the model")  # nothing new
    service.ready("serving")
    assert manager.recv(100) == b"READY=1\nSTATUS=serving"
    service.watchdog()
    assert manager.recv(100) == b"WATCHDOG=1"
    before = time.monotonic_ns() // 1000
    service.reloading()
    state, _, stamp = manager.recv(100).partition(b"\nMONOTONIC_USEC=")
    assert state == b"RELOADING=1"
    assert before <= int(stamp) <= time.monotonic_ns() // 1000
    service.stopping("draining")
    assert manager.recv(100) == b"STOPPING=1\nSTATUS=draining"


def test_notifier_reaches_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"fastovms-test-{os.getpid()}"
        sock.bind("\0" + name)
        sock.settimeout(60)
        Notifier({"NOTIFY_SOCKET": "@" + name}, os.getpid()).ready()
        assert sock.recv(100) == b"READY=1"


def test_notifier_without_a_manager_does_nothing(tmp_path: Path) -> None:
    Notifier({}, 1).ready("x")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}, 1).ready("x")


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_interval_is_half_of_the_environment_value(
    environ: dict[str, str], interval: float | None
) -> None:
    assert Notifier(environ, 7).watchdog_interval == interval


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "8", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "7"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "x", "LISTEN_FDNAMES": "a"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "0"},
    ],
)
def test_sockets_of_another_process_are_not_inherited(environ: dict[str, str]) -> None:
    assert inherited_sockets(environ, 7) == []
    assert environ == {}


@pytest.mark.parametrize("kind", ["file", "datagram", "none"])
def test_inherited_descriptor_that_is_no_stream_socket_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error is reported before a model is loaded."""
    with (tmp_path / "file").open("w") as file, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        descriptor = {"file": file.fileno(), "datagram": datagram.fileno(), "none": 9999}[kind]
        monkeypatch.setattr(listeners, "_FIRST_FD", descriptor)
        with pytest.raises(
            ConfigurationError, match=f"descriptor {descriptor} .* not a stream socket"
        ):
            inherited_sockets({"LISTEN_PID": "7", "LISTEN_FDS": "1"}, 7)


@pytest.mark.slow
def test_server_on_inherited_sockets_answers_earlier_connections(
    manager: socket.socket, tmp_path: Path
) -> None:
    """Socket activation with a restart: clients that connect in between wait and are answered."""
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(str(tmp_path / "http"))
        unix.listen()
        early = socket.create_connection(tcp.getsockname())
        early.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            env={**os.environ, "LISTEN_FDS": "2", "NOTIFY_SOCKET": manager.getsockname()},
            cwd=ROOT,
            close_fds=False,
            preexec_fn=lambda: _hand_over(tcp.fileno(), unix.fileno()),
        )
        try:
            message = manager.recv(1000).decode()
            port = tcp.getsockname()[1]
            assert message.startswith("READY=1\n")
            assert f"http://127.0.0.1:{port}" in message
            assert "unix:" in message
            late = socket.socket(socket.AF_UNIX)
            late.connect(str(tmp_path / "http"))
            late.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            for client in (early, late):
                client.settimeout(60)
                assert b"child" in client.recv(1000)
                client.close()
            assert child.stdin is not None
            child.stdin.close()
            assert manager.recv(1000) == b"STOPPING=1"
            assert child.wait(60) == 0
            # The manager's socket and its queue outlive the server.
            with socket.create_connection(tcp.getsockname()):
                pass
            assert (tmp_path / "http").exists()
        finally:
            child.kill()
            child.wait()


def _hand_over(*descriptors: int) -> None:
    """Runs in the child: the sockets become 3, 4, ..., as with systemd."""
    copies = [os.dup(descriptor) for descriptor in descriptors]
    for target, copy in enumerate(copies, 3):
        os.dup2(copy, target)


# TLS: its files, its versions, and the answer to a refused upload.


async def tls_get(port: int, certificate: Path) -> tuple[bytes, str | None]:
    context = ssl.create_default_context(cafile=certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    writer.write(get("/health") + get("/stream", "Connection: close"))
    data = await reader.read()
    alpn = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.close()
    return data, alpn


async def test_tls_files_are_reloaded_together(start: Start, tmp_path: Path) -> None:
    certificate, key = tmp_path / "crt", tmp_path / "key"
    shutil.copy(TLS / "first.crt", certificate)
    shutil.copy(TLS / "first.key", key)
    running = await start(tls_certificate=str(certificate), tls_key=str(key))
    assert running.server.addresses[0].startswith("https://127.0.0.1:")
    data, alpn = await tls_get(running.port, TLS / "first.crt")
    assert data.count(b" 200 OK") == 2
    assert data.endswith(b"0\r\n\r\n")
    assert alpn == "http/1.1"

    shutil.copy(TLS / "second.crt", certificate)
    with pytest.raises(ConfigurationError, match="cannot use the TLS files"):
        running.server.reload_tls()  # the key still belongs to the first one
    assert (await tls_get(running.port, TLS / "first.crt"))[1] == "http/1.1"
    shutil.copy(TLS / "second.key", key)
    running.server.reload_tls()
    with pytest.raises(ssl.SSLCertVerificationError):
        await tls_get(running.port, TLS / "first.crt")
    assert (await tls_get(running.port, TLS / "second.crt"))[0].count(b" 200 OK") == 2


async def test_tls_port_refuses_plain_http(start: Start) -> None:
    running = await start(**CREDENTIALS, head_timeout=0.2)
    assert (await talk(running.port, get(), answers=2)).data[:4] != b"HTTP"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context)
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
    writer.close()


@pytest.mark.slow
async def test_refused_upload_over_tls_gets_its_answer(start: Start) -> None:
    """TLS cannot close one direction: the rest is read until the deadline."""
    running = await start(**CREDENTIALS, linger_timeout=60.0)
    context = ssl.create_default_context(cafile=TLS / "first.crt")
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", running.port, ssl=context, server_hostname="localhost"
    )
    writer.write(get("/echo", "Content-Length: 9000000", method="POST") + b"x" * 500_000)
    assert await reader.readuntil(b" 413 ")
    writer.close()


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("none.crt", None, "No such file"),
        ("first.crt", None, "cannot use"),
        ("first.crt", "second.key", "cannot use"),
        (None, "first.key", "without a certificate"),
    ],
)
async def test_unusable_tls_files_are_a_configuration_error(
    certificate: str | None, key: str | None, message: str, start: Start
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await start(
            tls_certificate=certificate and str(TLS / certificate),
            tls_key=key and str(TLS / key),
        )


# TLS handshakes: their maximum number, and connections that wait for them.


@pytest.mark.slow
async def test_drain_does_not_wait_for_an_idle_tls_client(start: Start) -> None:
    """It does not read from its connection and therefore does not answer a close."""
    running = await start(close_timeout=600.0, **CREDENTIALS)

    def ask() -> ssl.SSLSocket:
        client = secure(connect(running.port))
        client.sendall(get())
        assert b" 200 OK" in client.recv(10_000)
        return client

    with await asyncio.to_thread(ask) as client:
        await asyncio.wait_for(running.server.drain(600), 60)
        assert running.server.num_connections == 0
        assert client.recv(1) == b"", "neither a reset nor a cut"


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def secure(client: socket.socket) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=TLS / "first.crt")
    return context.wrap_socket(client, server_hostname="localhost", suppress_ragged_eofs=False)


def ask_securely(port: int, target: str = "/health") -> bytes:
    with secure(connect(port)) as client:
        client.sendall(get(target))
        return client.recv(10_000)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.01)


async def test_handshakes_are_bounded(start: Start) -> None:
    """Clients that begin no handshake delay no other client: the one that has waited longest is
    disconnected."""
    running = await start(max_connections=3, **CREDENTIALS)
    server = running.server
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(running.port)) for _ in range(40)]
        await until(lambda: server.num_handshakes == 3)
        assert b" 200 OK" in await asyncio.to_thread(ask_securely, running.port)
        assert server.num_handshakes <= 3
        for client in silent[:-2]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""
    await until(lambda: server.num_handshakes == 0)


async def test_drain_waits_for_handshakes(start: Start) -> None:
    running = await start(**CREDENTIALS)
    with connect(running.port) as client:
        await until(lambda: running.server.num_handshakes == 1)
        drain = asyncio.ensure_future(running.server.drain(5))
        await asyncio.sleep(0.01)

        def ask() -> bytes:
            with secure(client) as secured:
                secured.sendall(get())
                return secured.recv(10_000)

        answer = await asyncio.to_thread(ask)
        assert b" 200 OK" in answer
        assert b"Connection: close\r\n" in answer
        await drain


async def test_running_request_counts_as_no_handshake(start: Start) -> None:
    running = await start(**CREDENTIALS)

    def num_handshakes(request: Request) -> Response:
        return Response(200, str(running.server.num_handshakes).encode(), "text/plain")

    running.site.router.add("GET", "/handshakes", num_handshakes)
    for _ in range(20):
        answer = await asyncio.to_thread(ask_securely, running.port, "/handshakes")
        assert answer.endswith(b"\r\n\r\n0")


# The addresses of the server.


async def unix_get(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(get("/health", "Connection: close"))
    data = await reader.read()
    writer.close()
    return data


async def test_server_listens_on_several_addresses(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen = ("127.0.0.1:0", "[::1]:0", f"unix:{path}")
    running = await start(listen=listen, unix_mode=0o600)
    first, second, third, fourth = running.server.addresses
    assert first != second
    assert third.startswith("http://[::1]:")
    assert fourth == f"unix:{path}"
    assert (await talk(int(second.rsplit(":", 1)[1]), get())).statuses == [200]
    reader, writer = await asyncio.open_connection("::1", int(third.rsplit(":", 1)[1]))
    writer.write(get("/health", "Connection: close"))
    assert b" 200 OK" in await reader.read()
    writer.close()
    assert running.site.requests[-1].client.startswith("[::1]:")
    assert b" 200 OK" in await unix_get(path)
    assert running.site.requests[-1].client == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await running.server.close()
    assert not path.exists()


async def test_empty_host_listens_on_every_interface_with_one_port(start: Start) -> None:
    running = await start(host="")
    ports = {address.rsplit(":", 1)[1] for address in running.server.addresses}
    assert len(ports) == 1, "one port for both families"
    assert (await talk(running.port, get())).statuses == [200]


async def test_unix_socket_of_a_dead_server_is_replaced(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    await start(listen=(f"unix:{path}",))
    assert b" 200 OK" in await unix_get(path)


async def test_unix_socket_of_a_live_server_is_kept(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s"
    running = await start(listen=(f"unix:{path}",))
    with pytest.raises(ConfigurationError, match="another server answers"):
        await start(listen=(f"unix:{path}",))
    assert b" 200 OK" in await unix_get(path)
    # The server must not remove another process's socket with its name.
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        await running.server.close()
        assert path.exists()


async def test_unix_socket_of_a_busy_server_is_not_replaced(start: Start, tmp_path: Path) -> None:
    """Its queue is full: the check whether it is alive must not wait for a place."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as clients:
        busy.bind(str(path))
        busy.listen(0)
        error = 0
        while not error:
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            error = client.connect_ex(str(path))
        with pytest.raises(ConfigurationError, match="another server answers"):
            await start(listen=(f"unix:{path}",))


async def test_unix_path_may_have_107_bytes(start: Start, tmp_path: Path) -> None:
    path = tmp_path / ("s" * (107 - len(str(tmp_path)) - 1))
    # Left by a process with the same id, as in containers, which was killed at its start.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path.with_name(f".{os.getpid()}")))
    await start(listen=(f"unix:{path}",))
    assert b" 200 OK" in await unix_get(path)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("name", "message"), [("file", "not a socket"), ("none/s", "No such"), ("x" * 120, "too long")]
)
async def test_unusable_unix_path_is_a_configuration_error(
    name: str, message: str, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigurationError, match=message):
        await start(listen=(f"unix:{tmp_path / name}",))
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
async def test_address_of_another_host_is_a_configuration_error(host: str, start: Start) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen on {host}"):
        await start(host=host)


async def test_failed_start_frees_bound_addresses(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = tmp_path / "s"
        with pytest.raises(ConfigurationError):
            await start(listen=(f"unix:{path}", f"127.0.0.1:{port}"))
        assert not path.exists()


async def test_reuse_port_lets_two_servers_share_a_port(start: Start) -> None:
    first = await start(reuse_port=True)
    second = await start(reuse_port=True, port=first.port)
    assert first.port == second.port


@pytest.mark.parametrize(
    ("hard", "wanted", "most"),
    [
        pytest.param(resource.RLIM_INFINITY, 16384, 16384, id="no limit"),
        pytest.param(1 << 20, 16384, 16384, id="high"),
        pytest.param(1024, 500, 500, id="enough"),
        pytest.param(1024, 16384, 774 - 24, id="quarter for other files"),
        pytest.param(4096, 16384, 4096 - 24 - 512, id="at most 512 for other files"),
        pytest.param(64, 16384, 64 - 24 - 32, id="at least 32 for other files"),
        pytest.param(32, 16384, 1, id="too low for anything"),
    ],
)
def test_connections_are_limited_by_open_files(
    hard: int,
    wanted: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (20, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda limit, value: set_to.append(value))
    monkeypatch.setattr(os, "listdir", lambda path: ["0"] * 24)
    assert raise_file_limit(wanted) == most
    assert set_to == [(hard, hard)]
    text = f"at most {most} at a time, not {wanted}, because the limit of open files is {hard}"
    assert (text in caplog.text) is (most < wanted)


async def test_only_a_few_refused_connections_stay_open(start: Start) -> None:
    running = await start(max_connections=2, linger_timeout=60)

    def ask() -> bytes:
        with connect(running.port) as client:
            return client.recv(1000)

    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(running.port)) for _ in range(2)]
        await until(lambda: running.server.num_connections == 2)
        # Clients that do not close refused connections.
        for _ in range(40):
            stack.enter_context(connect(running.port))
        assert (await asyncio.to_thread(ask)).startswith(b"HTTP/1.1 503 ")
        await until(lambda: running.server.num_connections <= 2 + writers._MAX_REFUSED)
        idle[0].sendall(get())
        assert b" 200 OK" in await asyncio.to_thread(idle[0].recv, 1000)
    await until(lambda: running.server.num_connections == 0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
async def test_listener_survives_a_shortage_of_descriptors(
    kind: str,
    number: int,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "socket"
    flags: dict[str, Any] = {"unix": {"listen": (f"unix:{path}",)}, "tls": CREDENTIALS}.get(
        kind, {}
    )
    running = await start(**flags)
    monkeypatch.setattr(listeners, "_PAUSE", 0.001)
    accept, left = socket.socket.accept, []

    def fail(sock: socket.socket) -> object:
        if left:
            raise OSError(left.pop(), os.strerror(number))
        return accept(sock)

    def ask() -> bytes:
        with contextlib.ExitStack() as stack:
            if kind == "unix":
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(60)
                client.connect(str(path))
            else:
                client = stack.enter_context(connect(running.port))
            client = stack.enter_context(secure(client)) if kind == "tls" else client
            client.sendall(get())
            return client.recv(1000)

    monkeypatch.setattr(socket.socket, "accept", fail)
    for _ in range(2):
        left += [number] * 3
        assert b" 200 OK" in await asyncio.to_thread(ask)
        assert not left
    assert caplog.text.count("cannot accept connections") == 1
