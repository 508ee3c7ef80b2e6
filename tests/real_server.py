"""Starts the real server as a process for all clients."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import openai
import pytest

from fastovms.server_config import DEMO_MODEL
from tests.server_process import DEADLINE, metric_sums, read_to_end, wait_until_refused

__all__ = ["DEADLINE", "read_to_end"]

NAME = DEMO_MODEL.name
PROMPT = "Once upon a time"
NARROW = (
    *("--max-num-seqs", "1", "--max-num-batched-tokens", "2"),
    *("--drain-timeout", f"{DEADLINE:g}s"),
)
"""Flags of a server that runs one sequence at a time with two tokens per step, and that waits for
it at the end even on a busy machine."""


class Reply(NamedTuple):
    """An answer with any status."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """A running server.

    Attributes:
        greeting: the first lines of its output.
        errors: its log, if `started` has started it.
    """

    process: subprocess.Popen[str]
    url: str
    greeting: list[str]
    errors: list[str] = field(default_factory=list)

    def client(self, prefix: str, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + prefix, api_key=key, max_retries=0, timeout=60)

    def send(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Sends a request; a body that is not bytes is sent as JSON."""
        is_data = body is None or isinstance(body, bytes)
        data = body if is_data else json.dumps(body).encode()
        fields = {"Content-Type": "application/json"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data, fields, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    def post(self, path: str, body: bytes) -> int:
        return self.send("POST", path, body).status

    def connect(self) -> socket.socket:
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE)

    def start_completion(self, **fields: object) -> socket.socket:
        """Returns a connection that has sent a request and has read nothing yet."""
        body = json.dumps({"model": NAME, "prompt": PROMPT, "stream": True, **fields}).encode()
        connection = self.connect()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % len(body)
            + body
        )
        return connection

    def metrics(self) -> dict[str, float]:
        return metric_sums(self.send("GET", "/metrics").body.decode())

    def wait_until_closed(self) -> None:
        wait_until_refused(self.connect)

    def wait_until(self, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        deadline = time.monotonic() + DEADLINE
        while not condition(metrics := self.metrics()):
            assert time.monotonic() < deadline, metrics
            time.sleep(0.02)
        return metrics


def start_server(*flags: str) -> Server:
    process = subprocess.Popen(
        [sys.executable, "-m", "fastovms", "serve", "--port", "0", "--cache-size", "0.1", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    greeting = [process.stdout.readline().rstrip("\n") for _ in range(3)]
    return Server(process, greeting[0].rpartition(" ")[2], greeting)


@contextmanager
def started(*line: str, **environ: str) -> Iterator[Server]:
    """Runs `fastovms` with any arguments and further variables, and collects its log."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fastovms", *line],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    errors: list[str] = []
    assert process.stderr is not None
    assert process.stdout is not None
    reader = threading.Thread(target=errors.extend, args=(process.stderr,))
    reader.start()
    try:
        address = process.stdout.readline().strip().rpartition(" ")[2]
        assert address.startswith("http"), errors
        yield Server(process, address.replace("0.0.0.0", "127.0.0.1"), [address], errors)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


def stop_server(server: Server) -> None:
    server.process.kill()
    server.process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server()
    yield server
    stop_server(server)


@pytest.fixture
def narrow_server() -> Iterator[Server]:
    """Starts a server that runs one sequence at a time with a few tokens per step, so that requests
    queue and prefill."""
    server = start_server(*NARROW)
    yield server
    stop_server(server)


@pytest.fixture(params=["/v1", "/v3", "/v3/v1"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[openai.OpenAI]:
    with server.client(request.param) as client:
        yield client


def is_idle(metrics: dict[str, float]) -> bool:
    return metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
