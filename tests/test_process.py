"""The life of the server process: start, supervision, reload, shutdown."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.controlled_server import HANG, NAME, RAISE
from tests.http.client import Answer
from tests.server_process import (
    DEADLINE,
    ServerProcess,
    ask,
    completion,
    get,
    read_answer,
    read_to_end,
    server_process,
)

TLS = Path(__file__).parent / "http" / "tls"
LONG = {"max_tokens": 4000, "stream": True}


class Manager(NamedTuple):
    """Stands in for systemd, at the socket to which states are sent."""

    sock: socket.socket

    @property
    def environ(self) -> dict[str, str]:
        return {"NOTIFY_SOCKET": self.sock.getsockname()}

    def states_until(self, beginning: str) -> list[str]:
        """Everything sent, up to a state that begins like this."""
        states: list[str] = []
        while not any(state.startswith(beginning) for state in states):
            states += self.sock.recv(4096).decode().split("\n")
        return states

    def forget(self) -> None:
        """Drops what has been sent so far."""
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.sock.recv(4096):
                pass
        self.sock.settimeout(DEADLINE)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(DEADLINE)
        yield Manager(sock)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# Start


def test_while_the_model_loads(manager):
    """Health says so, requests are put off, and a signal does not wait for the model."""
    port = free_port()
    with server_process(
        port=port, loading_seconds=30, wait=False, environ=manager.environ
    ) as server:
        server.addresses = [f"http://127.0.0.1:{port}"]
        assert "STATUS=loading the model" in manager.states_until("EXTEND_TIMEOUT_USEC=")
        for path, status in {
            "/health": 503, "/ready": 503, "/v2/health/ready": 503, "/v2/health/live": 200,
            "/metrics": 200, "/version": 200, "/v1/models": 503,
        }.items():  # fmt: skip
            assert server.status(path) == status, path
        for path in ("/v1/completions", "/v3/completions"):
            answer = server.ask(completion(path=path))
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "the model is loading" in answer.body.decode()
        # A browser asks first, and must get as far as the 503.
        preflight = get("/v1/completions", "Origin: a", "Access-Control-Request-Method: POST")
        answer = server.ask(preflight.replace(b"GET", b"OPTIONS", 1))
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "*")
        server.signal(signal.SIGTERM)
        assert "READY=1" not in manager.states_until("STOPPING=1")
        assert server.wait() == 0


@pytest.mark.parametrize(
    "streams", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full", "> >(true) 2> >(true)"]
)
def test_whatever_becomes_of_the_standard_streams(streams):
    """Closed descriptors are not given to sockets, and nobody has to read the greeting."""
    port = free_port()
    command = f"{sys.executable} -m tests.controlled_server 0 serve --port {port} {streams}"
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=Path(__file__).parents[1])
    server = ServerProcess(process, [f"http://127.0.0.1:{port}"])
    try:
        deadline = time.monotonic() + DEADLINE
        status = 0
        while status != 200:
            assert time.monotonic() < deadline
            assert process.poll() is None, "it has ended"
            time.sleep(0.05)
            with contextlib.suppress(ConnectionError):
                status = server.status("/ready")
        assert server.ask(completion(max_tokens=2)).status == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        process.kill()
        process.wait()


# Supervision


def test_an_engine_that_hangs(manager):
    environ = {**manager.environ, "WATCHDOG_USEC": "400000"}
    with server_process(
        "--engine-timeout", "1", "--failure-grace", "10", environ=environ
    ) as server:
        states = manager.states_until("READY=1")
        assert states[-1] == f"STATUS=serving {NAME}: 0 running, 0 waiting, 0 connections"
        assert server.ask(completion(max_tokens=100)).status == 200
        manager.states_until("WATCHDOG=1")
        with server.connect() as stream, server.connect() as unary:
            stream.sendall(completion(**LONG))
            stream.recv(1, socket.MSG_PEEK)
            manager.forget()
            unary.sendall(completion(prompt=[HANG], path="/v3/completions"))
            body = read_answer(stream).body
            assert b'data: {"error":{"message":"no step has ended for 1 s"' in body
            answer = read_answer(unary)
            assert answer.status == 500
            assert json.loads(answer.body) == {"error": "no step has ended for 1 s"}
        assert server.status("/health") == server.status("/v2/health/ready") == 503
        assert server.status("/v2/health/live") == 200
        assert server.ask(completion()).status == 503
        states = manager.states_until("STATUS=failed: no step has ended")
        assert states.count("WATCHDOG=1") <= 2, "it was fed while nothing moved"
        server.signal(signal.SIGTERM)  # the operator need not wait for the end of the grace
        assert server.wait() == 1
    assert server.errors[-1] == ("fastovms: the engine has failed: no step has ended for 1 s\n")


def test_an_engine_that_fails():
    with server_process("--max-num-seqs", "1", "--failure-grace", "10") as server:
        with server.connect() as stream, server.connect() as waiting, server.connect() as raising:
            stream.sendall(completion(max_tokens=50, stream=True))
            assert stream.recv(1, socket.MSG_PEEK)
            raising.sendall(completion(prompt=[RAISE], stream=True))
            waiting.sendall(completion())
            assert b"[DONE]" in read_answer(stream).body
            for connection in (raising, waiting):
                answer = read_answer(connection)
                assert answer.status == 500
                assert "out of order" in json.loads(answer.body)["error"]["message"]
        assert server.status("/health") == server.status("/ready") == 503
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
    assert any("RuntimeError: out of order" in line for line in server.errors)


# Shutdown


def test_a_signal_lets_running_requests_end(manager, tmp_path):
    path = tmp_path / "api.sock"
    with server_process(
        "--drain-delay", "0.4", "--uds", str(path), environ=manager.environ
    ) as server:
        manager.states_until("READY=1")
        with server.connect() as stream, server.connect() as kept, server.connect() as fresh:
            stream.sendall(completion(max_tokens=150, stream=True))
            stream.recv(1)
            assert ask(kept, get("/health")).status == 200
            server.signal(signal.SIGTERM)
            assert "STOPPING=1" in manager.states_until("EXTEND_TIMEOUT_USEC=")
            # Balancers are told; requests are still taken.
            assert ask(kept, get("/ready")).status == 503
            assert ask(kept, get("/health")).status == 200
            assert server.ask(completion(max_tokens=1)).status == 200
            server.wait_until_refused()
            # Accepted before, never asked: it gets an answer, and that is the last.
            answer = ask(fresh, completion(max_tokens=1))
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert answer.headers["retry-after"] == "1"
            body = read_to_end(stream)
            assert b'"finish_reason":"length"' in body
            assert b"data: [DONE]\n\n\r\n0\r\n\r\n" in body
        assert server.wait() == 0
    assert not path.exists()


def test_the_drain_timeout_ends_requests_with_an_error():
    with server_process("--drain-timeout", "0.3") as server:
        with server.connect() as stream, server.connect() as unary:
            for connection, streams in ((stream, True), (unary, False)):
                connection.sendall(completion(max_tokens=4000, stream=streams))
            server.wait_until(lambda metrics: metrics["num_requests_running"] == 2)
            server.signal(signal.SIGTERM)
            body = read_to_end(stream)
            assert b'data: {"error":{"message":"the server is shutting down"' in body
            assert body.endswith(b"0\r\n\r\n")
            answer = read_answer(unary)
            assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert server.wait() == 0


def test_a_second_signal_does_not_wait_for_an_engine_that_hangs():
    with server_process("--drain-timeout", "3600", "--engine-timeout", "3600") as server:
        with server.connect() as connection:
            connection.sendall(completion(prompt=[HANG]))
            server.wait_until(lambda metrics: metrics["num_requests_waiting"] == 1)
            server.signal(signal.SIGTERM)
            server.wait_until_refused()
            server.signal(signal.SIGTERM)
            answer = read_answer(connection)
            assert answer.status == 503
            assert "the server is shutting down" in answer.body.decode()
        assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_keep_coming(number):
    """Up to the very end of the process."""
    with server_process() as server:
        while server.process.poll() is None:
            server.signal(number)
            time.sleep(0.0005)
        assert server.wait() == 0
    assert "Traceback" not in "".join(server.errors)


class Clients:
    """Ask without a pause, some on new connections, some on kept ones, until told to stop."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.dropped: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number % 2 == 0,)) for number in range(number)
        ]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def wait_until_served(self, number: int) -> None:
        """Returns when so many more requests were, or one was dropped."""
        deadline = time.monotonic() + DEADLINE
        goal = self.statuses[200] + number
        while self.statuses[200] < goal and not self.dropped:
            assert time.monotonic() < deadline, self.statuses
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, keeps: bool) -> None:
        while not self._stop.is_set() and not self.dropped:
            with socket.create_connection(("127.0.0.1", self._port), timeout=20) as connection:
                self._use(connection, keeps)

    def _use(self, connection: socket.socket, keeps: bool) -> None:
        num_answers = 0
        while not self._stop.is_set():
            try:
                answer = ask(connection, completion(max_tokens=3))
            except (OSError, AssertionError) as error:
                self.dropped.append(f"{error!r} after {num_answers} answers, {keeps=}")
                return
            num_answers += 1
            self.statuses[answer.status] += 1
            if answer.headers.get("connection") == "close" or not keeps:
                return


def test_a_restart_under_load_drops_no_request():
    """The listening socket stays with its owner, so that clients notice a 503 at most."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        port = listener.getsockname()[1]
        with server_process("--drain-grace", "5", inherited=listener) as old:
            assert old.port == port
            with Clients(port, 8) as clients:
                clients.wait_until_served(50)
                old.signal(signal.SIGTERM)
                with server_process(inherited=listener):
                    assert old.wait() == 0
                    clients.wait_until_served(50)
                    clients.stop()
                assert clients.dropped == []
                assert set(clients.statuses) <= {200, 503}


# Access


class Site(NamedTuple):
    """A server with TLS, keys, restricted origins, two addresses and a log file."""

    server: ServerProcess
    folder: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context

    def connect(self, address: str | None = None) -> ssl.SSLSocket:
        host, _, port = (
            (address or self.server.addresses[0]).removeprefix("https://").rpartition(":")
        )
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
        return self.context().wrap_socket(plain)

    def ask(self, request: bytes, address: str | None = None) -> Answer:
        with self.connect(address) as connection:
            return ask(connection, request)

    def certificate(self) -> bytes | None:
        with self.connect() as connection:
            return connection.getpeercert(binary_form=True)

    def reload(self) -> None:
        """SIGHUP, and wait until it has had its effect."""
        num_reloads = self._num_reloads()
        self.server.signal(signal.SIGHUP)
        deadline = time.monotonic() + 10
        while self._num_reloads() == num_reloads:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _num_reloads(self) -> int:
        return sum("are reloaded" in line for line in self.server.errors)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for suffix in ("crt", "key"):
        shutil.copy(TLS / f"first.{suffix}", folder / f"tls.{suffix}")
    (folder / "keys").write_text("# two of them\nalpha\nbeta\n")
    with server_process(
        *("--host", "127.0.0.1", "--host", "::1"),
        *("--ssl-certfile", str(folder / "tls.crt"), "--ssl-keyfile", str(folder / "tls.key")),
        *("--api_key_file", str(folder / "keys")),
        *("--allowed_origins", "https://app.example", "--allow_credentials", "true"),
        *("--access-log-file", str(folder / "log"), "--ovms-metrics"),
    ) as server:
        yield Site(server, folder)


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


def test_tls(site):
    with site.connect() as connection:
        assert connection.version() in ("TLSv1.2", "TLSv1.3")
        assert connection.selected_alpn_protocol() == "http/1.1"
        assert ask(connection, get("/health")).status == 200
    with site.server.connect() as plain:
        plain.sendall(get("/health"))
        assert not plain.recv(1)


def test_both_addresses(site):
    assert [address.rpartition(":")[0] for address in site.server.addresses] == [
        "https://127.0.0.1",
        "https://[::1]",
    ]
    for address in site.server.addresses:
        assert site.ask(get("/v1/models", bearer("alpha")), address).status == 200


def test_keys(site):
    for field in ((), (bearer("gamma"),), ("Authorization: Basic alpha",)):
        for path in ("/v1/completions", "/v3/completions"):
            answer = site.ask(completion(*field, path=path))
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == 'Bearer realm="fastovms"'
        assert site.ask(get("/nowhere", *field)).status == 401
    for key in ("alpha", "beta"):
        assert site.ask(completion(bearer(key), max_tokens=1)).status == 200
    assert site.ask(get("/health")).status == site.ask(get("/v2/health/ready")).status == 200


def test_cross_origin_requests(site):
    asked = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization")
    request = get("/v1/completions", "Origin: https://app.example", *asked)
    preflight = site.ask(request.replace(b"GET", b"OPTIONS", 1))
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert preflight.headers["access-control-allow-credentials"] == "true"
    assert preflight.headers["access-control-allow-methods"] == "POST"
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    stranger = site.ask(get("/v1/models", "Origin: https://evil.example", bearer("alpha")))
    assert "access-control-allow-origin" not in stranger.headers


def test_ovms_metrics(site):
    site.ask(completion(bearer("alpha"), path="/v3/completions", max_tokens=1))
    text = site.ask(get("/metrics", bearer("alpha"))).body.decode()
    labels = f'api="V3",interface="REST",method="Unary",name="{NAME}",version="1"'
    assert f"ovms_requests_success{{{labels}}} 1.0" in text


def test_reload(site):
    """Certificate, keys and log file change under a running server; broken ones do not."""
    with site.connect() as connection:
        before = site.certificate()
        for suffix in ("crt", "key"):
            shutil.copy(TLS / f"second.{suffix}", site.folder / f"tls.{suffix}")
        (site.folder / "keys").write_text("delta\n")
        (site.folder / "log").rename(site.folder / "log.1")
        site.reload()
        assert site.certificate() != before
        assert site.ask(get("/v1/models", bearer("alpha"))).status == 401
        assert site.ask(get("/v1/models", bearer("delta"))).status == 200
        assert ask(connection, get("/health")).status == 200, "an open connection was lost"
    before = site.certificate()
    for name in ("tls.crt", "keys"):
        (site.folder / name).write_text("")
    site.reload()
    assert site.certificate() == before
    assert site.ask(get("/v1/models", bearer("delta"))).status == 200
    assert sum("not reloaded" in line for line in site.server.errors) == 2
    assert "are reloaded, but for what could not be" in site.server.errors[-1]
    assert "delta" not in "".join(site.server.errors)
    deadline = time.monotonic() + 5
    while "/v1/models" not in (site.folder / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "/v1/models 200" in (site.folder / "log").read_text()


def test_a_unix_socket_alone(tmp_path):
    path = tmp_path / "api.sock"
    environ = {"API_KEY": "from-the-environment"}
    with server_process(
        "--uds", str(path), "--uds-mode", "600", port=None, environ=environ
    ) as server:
        assert server.addresses == [f"unix:{path}"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for key, status in (("wrong", 401), (environ["API_KEY"], 200)):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                assert ask(connection, get("/v1/models", bearer(key))).status == status
        assert server.process.stdout is not None
        server.process.stdout.readline()
        command = server.process.stdout.readline()
        assert f"curl --unix-socket {path} http://localhost/v1/completions" in command
        assert '"Authorization: Bearer $API_KEY"' in command
