"""Clients that misbehave, against a real server process: each costs bounded time and memory, and
nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.forms import CONTENT_TYPE, form
from tests.controlled_server import NAME
from tests.server_process import (
    ServerProcess,
    ask,
    completion,
    get,
    post,
    read_answer,
    read_to_end,
    server_process,
)

NUM_WAITING = 4
MAX_CONNECTIONS = 60
LONG = {"max_tokens": 4000, "stream": True}


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "api.sock"


@pytest.fixture(scope="module")
def log_path(socket_path: Path) -> Path:
    return socket_path.with_name("access.log")


@pytest.fixture(scope="module")
def impatient(socket_path: Path, log_path: Path) -> Iterator[ServerProcess]:
    """Has short deadlines and low limits."""
    with server_process(
        *("--uds", str(socket_path)),
        *("--max-num-seqs", "32", "--max-queued-requests", str(NUM_WAITING)),
        *("--max-connections", str(MAX_CONNECTIONS), "--max-body", "1M", "--max-pipelined", "4"),
        *("--max-pending-chars", "20000", "--max-write-buffer", "64K"),
        *("--head-timeout", "0.4", "--body-timeout", "0.4", "--keep-alive-timeout", "0.6"),
        *("--write-timeout", "0.6", "--linger-timeout", "0.3", "--close-timeout", "0.3"),
        *("--ping-interval", "0.2", "--access-log", "json", "--access-log-file", str(log_path)),
    ) as process:
        yield process


@pytest.fixture
def server(impatient: ServerProcess) -> Iterator[ServerProcess]:
    """Whatever a test does to it, it serves the next one, and nothing is left over."""
    yield impatient
    impatient.wait_until_idle()
    impatient.wait_until(lambda metrics: metrics["http_connections"] == 1)
    answer = impatient.ask(completion(max_tokens=2))
    assert json.loads(answer.body)["usage"]["completion_tokens"] == 2


@pytest.mark.nightly(but=("chunks",))
@pytest.mark.parametrize(
    ("start", "flood", "status"),
    [
        (b"", b"\r\n", 400),
        (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", None),
        (b"GET /health HTTP/1.1\r\n", b"X-Field: " + b"x" * 100 + b"\r\n", 431),
        (b"GET /", b"x" * 1000, 414),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n",
            b"400\r\n" + b" " * 1024 + b"\r\n",
            413,
        ),
    ],
    ids=["line ends", "requests", "fields", "target", "chunks"],
)
def test_flood_ends_its_connection_without_memory_growth(server, start, flood, status):
    """It is taken for the time in which the refused client may read its answer, no longer."""
    before = server.metrics()["process_resident_memory_bytes"]
    piece = flood * (65536 // len(flood))
    with server.connect(receive_buffer=4096) as connection:
        end = time.monotonic() + 60
        with contextlib.suppress(ConnectionError):
            connection.sendall(start)
            while time.monotonic() < end:
                connection.sendall(piece)
        assert time.monotonic() < end
        assert server.status("/health") == 200
        received = b""
        with contextlib.suppress(ConnectionError):
            received = read_to_end(connection)
        if status is not None and received:
            last = received[received.rindex(b"HTTP/1.1 ") :]
            assert last.startswith(b"HTTP/1.1 %d " % status), last
    after = server.metrics()["process_resident_memory_bytes"]
    assert after - before < 16 * 1024 * 1024


def test_an_upload_that_is_too_large_gets_its_answer(server):
    """Though the client sends on and reads only then."""
    with server.connect() as connection:
        request = post("/v1/completions", b" " * 4 * 1024 * 1024)
        try:
            connection.sendall(request)
        except ConnectionError:
            pytest.fail("the connection was reset under the answer")
        assert read_answer(connection).status == 413


def connect_unix(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(str(path))
    return connection


@pytest.mark.nightly(but=("tcp",))
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_unread_stream_is_cut_without_effect_on_others(server, transport, socket_path):
    deaf = server.connect(receive_buffer=4096) if transport == "tcp" else connect_unix(socket_path)
    with deaf:
        deaf.sendall(completion(n=30, logprobs=20, **LONG))
        server.wait_until(lambda metrics: metrics["num_requests_running"] == 30)
        body = server.ask(completion(max_tokens=60, stream=True)).body
        assert b'"finish_reason":"length"' in body
        assert body.endswith(b"data: [DONE]\n\n")
        server.wait_until_idle()
        try:
            received = read_to_end(deaf)
        except ConnectionResetError:
            received = b""
        assert b"[DONE]" not in received


LEAVING = {
    "half-close": lambda connection: connection.shutdown(socket.SHUT_WR),
    "close": lambda connection: connection.close(),
    "reset": lambda connection: (
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
        connection.close(),
    ),
}


@pytest.mark.nightly(but=("True-close",))
@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_what_it_ran(server, leave, stream):
    with server.connect() as connection:
        connection.sendall(completion(max_tokens=4000, stream=stream))
        server.wait_until(lambda metrics: metrics["num_requests_running"] == 1)
        leave(connection)
        server.wait_until_idle()
    assert server.metrics()["kv_cache_usage_perc"] == 0


def test_access_log_names_requests_without_their_secrets(server, log_path):
    prompt = "a secret prompt"
    fields = ("X-Request-Id: mine-1", "Authorization: Bearer secret-key")
    answer = server.ask(completion(*fields, path="/v1/completions?k=secret", prompt=prompt))
    assert (answer.status, answer.headers["x-request-id"]) == (200, "mine-1")
    made = server.ask(get("/version", "X-Request-Id: not a token")).headers["x-request-id"]
    assert made
    assert " " not in made
    with server.connect() as connection:
        connection.sendall(completion("X-Request-Id: mine-2", **LONG))
        connection.recv(1)
    server.wait_until_idle()
    deadline = time.monotonic() + 60
    while '"id":"mine-2"' not in (text := log_path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "secret" not in text
    lines = {line["id"]: line for line in map(json.loads, text.splitlines())}
    line = lines["mine-1"]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["model"], line["stream"]) == (NAME, False)
    usage = json.loads(answer.body)["usage"]
    for name in ("prompt_tokens", "completion_tokens"):
        assert line[name] == usage[name] > 0
    assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 <= line["queue_ms"] <= line["first_token_ms"] <= line["duration_ms"]
    assert lines["mine-2"]["cut"] is True
    assert made in lines


def set_file_limit(server: ServerProcess, *, is_short: bool) -> None:
    """Leaves a server no descriptor, or as many as it had."""
    pid = server.process.pid
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = next(number for number in range(hard) if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free if is_short else hard, hard))


def test_a_server_without_descriptors_answers_and_recovers(tmp_path):
    upload = post("/v1/files", form({"purpose": "user_data"}), f"Content-Type: {CONTENT_TYPE}")
    with server_process("--state-dir", str(tmp_path)) as server, server.connect() as connection:
        assert ask(connection, upload).status == 200
        set_file_limit(server, is_short=True)
        with server.connect() as waiting:
            waiting.sendall(get("/health"))
            server.wait_for_log("cannot accept connections")
            # Takes more than a second, after which the watch looks at statistics.
            assert ask(connection, completion(max_tokens=200)).status == 200
            assert ask(connection, post("/v1/conversations", b"{}")).status in (200, 503)
            refused = ask(connection, upload)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert ask(connection, get("/metrics")).status == 200
            server.signal(signal.SIGHUP)
            server.wait_for_log("reloaded")
            set_file_limit(server, is_short=False)
            assert read_answer(waiting).status == 200
        assert ask(connection, upload).status == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
