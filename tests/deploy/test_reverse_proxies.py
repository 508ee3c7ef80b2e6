"""Tests of the configurations of docs/reverse-proxy.md, in the real proxies with a real server."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.docs.user_pages import blocks_of
from tests.paths import ROOT, TLS
from tests.postgres_server import free_port
from tests.real_server import DEADLINE, NAME, PROMPT, Server, start_server, stop_server

PAGE: Final = ROOT / "docs" / "reverse-proxy.md"
HOST: Final = "llm.example"
SEARCHED: Final = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin"


def _nginx(text: str, port: int, upstream: str, folder: Path) -> list[str]:
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    text = text.replace("127.0.0.1:8000", upstream)
    text = text.replace("/etc/ssl/llm.example", str(folder / "cert"))
    user = "user root;\n" if os.geteuid() == 0 else ""
    temporary = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n"
        f"    access_log off;\n{temporary}{text}}}\n"
    )
    return ["-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr"]


def _haproxy(text: str, port: int, upstream: str, folder: Path) -> list[str]:
    text = text.replace("bind :443", f"bind 127.0.0.1:{port}")
    text = text.replace("/etc/haproxy/llm.example.pem", str(folder / "cert.pem"))
    (folder / "haproxy.cfg").write_text(text.replace("127.0.0.1:8000", upstream))
    return ["-db", "-f", str(folder / "haproxy.cfg")]


def _caddy(text: str, port: int, upstream: str, folder: Path) -> list[str]:
    text = text.replace(
        f"{HOST} {{", f"https://{HOST}:{port} {{\n    tls {folder}/cert.crt {folder}/cert.key", 1
    )
    options = "{\n    admin off\n    auto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(options + text.replace("127.0.0.1:8000", upstream))
    return ["run", "--config", str(folder / "Caddyfile")]


PROXIES: Final[dict[str, Callable[[str, int, str, Path], list[str]]]] = {
    "nginx": _nginx,
    "haproxy": _haproxy,
    "caddy": _caddy,
}
"""Writes the configuration of the page with other addresses; returns the arguments."""


def configuration(proxy: str) -> str:
    [block] = [block for block in blocks_of(PAGE) if block.language == proxy]
    return block.text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("log") / "access"
    server = start_server(
        "--allowed-hosts", HOST, "--forwarded-allow-ips", "127.0.0.1", "--access-log", "json",
        "--access-log-file", str(log), "--state-dir", ":memory:",
    )  # fmt: skip
    yield server
    stop_server(server)


@pytest.fixture(
    scope="module",
    params=["nginx", *(pytest.param(it, marks=pytest.mark.nightly) for it in ("haproxy", "caddy"))],
)
def port(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Returns the port of a running proxy."""
    program = shutil.which(request.param, path=SEARCHED)
    if program is None:
        pytest.skip(f"{request.param} is missing: apt-get install {request.param}")
    folder = tmp_path_factory.mktemp(request.param)
    folder.chmod(0o755)
    for kind in ("crt", "key"):
        shutil.copy(TLS / f"first.{kind}", folder / f"cert.{kind}")
    (folder / "cert.pem").write_bytes(
        b"".join((TLS / f"first.{kind}").read_bytes() for kind in ("crt", "key"))
    )
    port = free_port()
    upstream = server.url.removeprefix("http://")
    arguments = PROXIES[request.param](configuration(request.param), port, upstream, folder)
    log = folder / "log"
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *arguments], stdout=output, stderr=output, env=environment
        )
    try:
        wait_until_ready(port, process, log)
        yield port
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            with closing(connect(port)) as connection:
                connection.request("GET", "/v1/models", headers={"Host": HOST})
                if connection.getresponse().status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.05)


def connect(port: int) -> http.client.HTTPSConnection:
    """Returns a connection that names the host in TLS and trusts any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=DEADLINE)
    plain = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
    connection.sock = context.wrap_socket(plain, server_hostname=HOST)
    return connection


def post(
    connection: http.client.HTTPSConnection, path: str, **body: object
) -> http.client.HTTPResponse:
    headers = {"Host": HOST, "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps({"model": NAME, **body}), headers)
    return connection.getresponse()


def test_a_stream_arrives_as_it_is_made(port: int):
    with closing(connect(port)) as connection:
        start = time.monotonic()
        answer = post(
            connection,
            "/v1/completions",
            prompt=PROMPT,
            max_tokens=1000,
            ignore_eos=True,
            stream=True,
        )
        assert answer.status == 200
        arrivals = [time.monotonic() - start for line in answer if line.startswith(b"data: {")]
    assert len(arrivals) > 100
    assert arrivals[0] < 0.8 * arrivals[-1]


def test_a_large_body_passes(port: int):
    with closing(connect(port)) as connection:
        answer = post(
            connection, "/v1/completions", prompt=PROMPT, max_tokens=1, unknown="a" * 2_000_000
        )
        assert answer.status == 200
        answer.read()


def test_the_server_knows_the_name(port: int):
    """The name is compared with `--allowed-hosts`, and so is the origin of a page."""
    with closing(connect(port)) as connection:
        headers = {"Host": HOST, "Origin": f"https://{HOST}"}
        connection.request("GET", "/v1/models", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read()


def test_a_connection_becomes_a_websocket(port: int):
    key = base64.b64encode(os.urandom(16)).decode()
    with closing(connect(port)) as connection:
        assert connection.sock is not None
        connection.sock.sendall(
            f"GET /v1/responses HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.sock.recv(4096)
            assert received, head
            head += received
    assert head.startswith(b"HTTP/1.1 101"), head
    assert re.search(rb"(?i)upgrade: websocket", head)
