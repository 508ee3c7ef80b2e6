"""Starts the real server as a process, for clients of every kind."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastovms.server_config import DEMO_MODEL
from tests.server_process import wait_until_refused

NAME = DEMO_MODEL.name
PROMPT = "Once upon a time"
DEADLINE = 120.0
NARROW = (
    *("--max-num-seqs", "1", "--max-num-batched-tokens", "2"),
    *("--drain-timeout", f"{DEADLINE:g}s"),
)
"""Flags of a server that runs one sequence at a time, two tokens a step, and waits for it at the
end even on a busy machine."""


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    greeting: list[str]

    def client(self, prefix: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + prefix, api_key="none", max_retries=0, timeout=60)

    def post(self, path: str, body: bytes) -> int:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, body), timeout=DEADLINE
            ) as response:
                return response.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def connect(self) -> socket.socket:
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE)

    def start_completion(self, **fields: object) -> socket.socket:
        """A connection that has sent a request and not yet read anything."""
        body = json.dumps({"model": NAME, "prompt": PROMPT, "stream": True, **fields}).encode()
        connection = self.connect()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % len(body)
            + body
        )
        return connection

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=DEADLINE) as response:
            text = response.read().decode()
        return {
            sample.name.removeprefix("fastovms_"): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

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
    """Runs one sequence at a time, a few tokens a step, so that requests queue and prefill."""
    server = start_server(*NARROW)
    yield server
    stop_server(server)


@pytest.fixture(params=["/v1", "/v3", "/v3/v1"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[openai.OpenAI]:
    with server.client(request.param) as client:
        yield client


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def is_idle(metrics: dict[str, float]) -> bool:
    return metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
