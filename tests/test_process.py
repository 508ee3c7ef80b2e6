"""The life of the server process: start, supervision, shutdown."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.controlled_server import HANG, NAME
from tests.paths import ROOT
from tests.postgres_server import free_port
from tests.server_process import (
    DEADLINE,
    ServerProcess,
    ask,
    completion,
    get,
    post,
    read_answer,
    read_to_end,
    server_process,
)

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


# Start


def test_loading_server_reports_it_and_ends_by_a_signal(manager):
    """Health says so, generation waits, and a signal waits for neither model nor client."""
    port = free_port()
    with server_process(
        "--allowed-origins", "a",
        port=port, loading_seconds=30, wait=False, environ=manager.environ,
    ) as server:  # fmt: skip
        server.addresses = [f"http://127.0.0.1:{port}"]
        assert "STATUS=loading the model" in manager.states_until("EXTEND_TIMEOUT_USEC=")
        for path, status in {
            "/health": 503, "/ready": 503, "/v2/health/ready": 503, "/v2/health/live": 200,
            "/metrics": 200, "/version": 200, "/v1/models": 503,
        }.items():  # fmt: skip
            assert server.status(path) == status, path
        waiting = [server.connect() for _ in range(2)]
        for connection, path in zip(waiting, ("/v1/completions", "/v3/completions"), strict=True):
            connection.sendall(completion(path=path))
        # A browser asks first.
        preflight = get("/v1/completions", "Origin: a", "Access-Control-Request-Method: POST")
        answer = server.ask(preflight.replace(b"GET", b"OPTIONS", 1))
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "a")
        server.signal(signal.SIGTERM)
        for connection in waiting:
            with connection:
                answer = read_answer(connection)
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "READY=1" not in manager.states_until("STOPPING=1")
        assert server.wait() == 0


@pytest.mark.nightly(but=("<&-",))
@pytest.mark.parametrize(
    "streams", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full", "> >(true) 2> >(true)"]
)
def test_server_with_closed_or_full_streams_answers(streams):
    """Closed descriptors are not given to sockets, and nobody has to read the greeting."""
    port = free_port()
    command = f"{sys.executable} -m tests.controlled_server 0 serve --port {port} {streams}"
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=ROOT)
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


@pytest.mark.nightly
def test_unwritable_state_directory_is_used_once_it_can_be(manager, tmp_path):
    """It starts, and uses the disk once that can be had."""
    directory, disk = tmp_path / "state", tmp_path / "disk"
    directory.symlink_to("/sys")  # nobody may write there, root neither
    disk.mkdir()

    def find(server: ServerProcess, id: str) -> int:
        return server.status(f"/v1/conversations/{id}")

    with server_process("--state-dir", str(directory), environ=manager.environ) as server:
        ready = manager.states_until("READY=1")[-1]
        assert "; responses are not stored: " in ready
        assert server.metrics()["state_on_disk"] == 0
        assert find(server, "conv_unknown") == 503
        directory.unlink()
        directory.symlink_to(disk)
        server.wait_until(lambda metrics: metrics["state_on_disk"] == 1)
        manager.states_until(f"STATUS=serving {NAME}: 0 running, 0 waiting, 0 connections")
        server.wait_for_log("responses are stored on disk from now on")
        id = json.loads(server.ask(post("/v1/conversations", b"{}")).body)["id"]
        assert find(server, id) == 200
        server.process.kill()
    assert any("until" in line for line in server.errors)
    with server_process("--state-dir", str(directory)) as server:
        assert find(server, id) == 200


# Supervision


def test_hanging_engine_fails_its_requests_and_the_server(manager):
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
        assert states.count("WATCHDOG=1") <= 4, "a hanging engine must not keep the process alive"
        server.signal(signal.SIGTERM)  # the operator need not wait for the end of the grace
        assert server.wait() == 1
    assert server.errors[-1] == ("fastovms: the engine has failed: no step has ended for 1 s\n")


# Shutdown


def test_a_signal_lets_running_requests_end(manager, tmp_path):
    path = tmp_path / "api.sock"
    with server_process(
        "--drain-delay", "0.4", "--drain-grace", "10", "--uds", str(path), environ=manager.environ
    ) as server:
        manager.states_until("READY=1")
        with server.connect() as stream, server.connect() as kept, server.connect() as fresh:
            stream.sendall(completion(max_tokens=150, stream=True))
            stream.recv(1, socket.MSG_PEEK)
            assert ask(kept, get("/health")).status == 200
            server.signal(signal.SIGTERM)
            assert "STOPPING=1" in manager.states_until("EXTEND_TIMEOUT_USEC=")
            # Balancers are told; requests are still taken.
            assert ask(kept, get("/ready")).status == 503
            assert ask(kept, get("/health")).status == 200
            assert server.ask(completion(max_tokens=1)).status == 200
            server.wait_until_refused()
            # Whoever was let in gets an answer, and with that is told that it is the last.
            for connection in (kept, fresh):
                answer = ask(connection, completion(max_tokens=1))
                assert (answer.status, answer.headers["connection"]) == (200, "close")
            body = read_answer(stream).body
            assert b'"finish_reason":"length"' in body
            assert body.endswith(b"data: [DONE]\n\n")
        assert server.wait() == 0
    assert not path.exists()


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly(but=("15",))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_repeated_signals_end_the_server_without_a_traceback(number):
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
            with socket.create_connection(("127.0.0.1", self._port), timeout=60) as connection:
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
    """The listening socket stays with its owner, so that clients notice nothing but a wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        port = listener.getsockname()[1]
        with server_process(inherited=listener) as old:
            assert old.port == port
            with Clients(port, 8) as clients:
                clients.wait_until_served(50)
                old.signal(signal.SIGTERM)
                with server_process(inherited=listener):
                    assert old.wait() == 0
                    clients.wait_until_served(50)
                    clients.stop()
                assert clients.dropped == []
                assert set(clients.statuses) == {200}
