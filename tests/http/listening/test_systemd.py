"""A real NOTIFY_SOCKET and really inherited descriptors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.http.listening import systemd
from fastovms.http.listening.systemd import Notifier, inherited_sockets
from tests.paths import ROOT

_CHILD = """
import asyncio, os, sys
from fastovms.config.http_config import HttpConfig
from fastovms.http import HttpServer, Response, Router
from fastovms.http.listening.systemd import Notifier, inherited_sockets

async def main():
    os.environ["LISTEN_PID"] = str(os.getpid())
    router = Router()
    router.add("GET", "/", lambda request: Response(200, b"child"))
    server = HttpServer(
        HttpConfig(port=1),
        router,
        render_error=lambda request, status, message: Response(status),
        inherited=inherited_sockets(os.environ, os.getpid()),
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
        sock.settimeout(10)
        yield sock


def notifier(manager: socket.socket, **environ: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": manager.getsockname(), **environ}, os.getpid())


def test_messages(manager: socket.socket) -> None:
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


def test_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"fastovms-test-{os.getpid()}"
        sock.bind("\0" + name)
        sock.settimeout(10)
        Notifier({"NOTIFY_SOCKET": "@" + name}, os.getpid()).ready()
        assert sock.recv(100) == b"READY=1"


def test_without_a_manager(tmp_path: Path) -> None:
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
def test_watchdog_interval(environ: dict[str, str], interval: float | None) -> None:
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
def test_sockets_that_are_not_ours(environ: dict[str, str]) -> None:
    assert inherited_sockets(environ, 7) == []
    assert environ == {}


@pytest.mark.parametrize("kind", ["file", "datagram", "none"])
def test_what_is_no_stream_socket(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Said in words, before a model is loaded."""
    with (tmp_path / "file").open("w") as file, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        descriptor = {"file": file.fileno(), "datagram": datagram.fileno(), "none": 9999}[kind]
        monkeypatch.setattr(systemd, "_FIRST_FD", descriptor)
        with pytest.raises(
            ConfigurationError, match=f"descriptor {descriptor} .* no stream socket"
        ):
            inherited_sockets({"LISTEN_PID": "7", "LISTEN_FDS": "1"}, 7)


def test_a_server_on_inherited_sockets(manager: socket.socket, tmp_path: Path) -> None:
    """Activation over a restart: who connects in between waits, and is answered."""
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
                client.settimeout(10)
                assert b"child" in client.recv(1000)
                client.close()
            assert child.stdin is not None
            child.stdin.close()
            assert manager.recv(1000) == b"STOPPING=1"
            assert child.wait(10) == 0
            # The manager's socket outlives the server, and so does what is queued on it.
            with socket.create_connection(tcp.getsockname()):
                pass
            assert (tmp_path / "http").exists()
        finally:
            child.kill()
            child.wait()


def _hand_over(*descriptors: int) -> None:
    """In the child: the sockets become 3, 4, ..., as systemd has it."""
    copies = [os.dup(descriptor) for descriptor in descriptors]
    for target, copy in enumerate(copies, 3):
        os.dup2(copy, target)
