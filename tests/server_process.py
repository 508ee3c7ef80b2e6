"""Starts the server as a process and talks to it without a client library."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from tests.controlled_server import NAME
from tests.http.client import Answer, split_answer
from tests.paths import ROOT

DEADLINE = 120.0


def wait_until_refused(connect: Callable[[], socket.socket]) -> None:
    """Returns when new connections are refused."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            connect().close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # the kernel had queued it when the listener was closed
    raise AssertionError("the server still accepts connections")


def metric_sums(text: str) -> dict[str, float]:
    """Returns the sum of each metric's samples over their labels, by its name without prefix."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("fastovms_")
            values[name] = values.get(name, 0.0) + sample.value
    return values


@dataclass
class ServerProcess:
    """A running server with the addresses of its greeting."""

    process: subprocess.Popen[str]
    addresses: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "is listening on" in line, self.errors
        self.addresses = line.rpartition(" listening on ")[2].strip().split(", ")

    @property
    def port(self) -> int:
        return int(self.addresses[0].rpartition(":")[2])

    # Connections

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(DEADLINE)
        try:
            connection.connect(("127.0.0.1", self.port))
        except OSError:
            connection.close()
            raise
        return connection

    def ask(self, request: bytes) -> Answer:
        with self.connect() as connection:
            return ask(connection, request)

    def status(self, path: str) -> int:
        return self.ask(get(path)).status

    def metrics(self) -> dict[str, float]:
        """Sums over labels."""
        body = self.ask(get("/metrics")).body
        assert body is not None
        return metric_sums(body.decode())

    def wait_until(self, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        deadline = time.monotonic() + DEADLINE
        while not condition(metrics := self.metrics()):
            assert time.monotonic() < deadline, metrics
            time.sleep(0.02)
        return metrics

    def wait_for_log(self, text: str) -> None:
        """Waits for a line of the log that contains the text."""
        deadline = time.monotonic() + DEADLINE
        while not any(text in line for line in self.errors):
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.02)

    def wait_until_idle(self) -> None:
        self.wait_until(
            lambda metrics: metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
        )

    # The process

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(DEADLINE)

    def wait_until_refused(self) -> None:
        wait_until_refused(self.connect)


@contextmanager
def server_process(
    *flags: str,
    loading_seconds: float = 0.0,
    environ: Mapping[str, str] | None = None,
    inherited: socket.socket | None = None,
    wait: bool = True,
    port: int | None = 0,
) -> Iterator[ServerProcess]:
    """The controlled server.

    Args:
        inherited: a listening socket, handed over as systemd does.
        wait: until it can be asked.
        port: None leaves that flag out.
    """
    command = [sys.executable, "-m", "tests.controlled_server", str(loading_seconds), "serve"]
    command += ["--cache-size", "0.01", *(() if port is None else ("--port", str(port))), *flags]
    pass_fds = ()
    if inherited is not None:
        pass_fds = (inherited.fileno(),)
        hand_over = f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@" 3<&{inherited.fileno()}'
        command = ["bash", "-c", hand_over, *command]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        pass_fds=pass_fds,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server = ServerProcess(process)
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: server.errors.extend(process.stderr))  # type: ignore[arg-type]
    reader.start()
    try:
        if wait:
            server.wait_until_ready()
        yield server
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()
        process.stderr.close()


def get(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *fields, "", ""]).encode()


def post(path: str, body: bytes, *fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *fields, "", ""]).encode() + body


def completion(
    *fields: str, path: str = "/v1/completions", prompt: object = (5, 6, 7), **members: object
) -> bytes:
    """A request that runs to `max_tokens`."""
    body = {"model": NAME, "prompt": prompt, "temperature": 0, **members}
    return post(path, json.dumps(body).encode(), *fields)


def ask(connection: socket.socket | ssl.SSLSocket, request: bytes) -> Answer:
    """Sends a request and reads its answer, which must be sized or chunked."""
    connection.sendall(request)
    return read_answer(connection)


def read_answer(connection: socket.socket | ssl.SSLSocket) -> Answer:
    data = b""
    while True:
        if b"\r\n\r\n" in data:
            answer, _ = split_answer(data)
            if answer.body is not None:
                return answer
        piece = connection.recv(65536)
        assert piece, f"the connection ended within an answer: {data[-500:]!r}"
        data += piece


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def is_closed(connection: socket.socket) -> bool:
    """Waits for the server's end of the connection, whatever comes before it."""
    try:
        read_to_end(connection)
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
