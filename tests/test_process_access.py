"""Access to the server process: TLS, keys, origins, sockets, and their reload."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.http.client import Answer
from tests.paths import TLS
from tests.server_process import ServerProcess, ask, completion, get, read_to_end, server_process


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
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=60)
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
        deadline = time.monotonic() + 60
        while self._num_reloads() == num_reloads:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _num_reloads(self) -> int:
        return sum("reloaded certificates" in line for line in self.server.errors)


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


def test_tls_is_required_and_negotiates_http_1_1(site):
    with site.connect() as connection:
        assert connection.version() in ("TLSv1.2", "TLSv1.3")
        assert connection.selected_alpn_protocol() == "http/1.1"
        assert ask(connection, get("/health")).status == 200
    with site.server.connect() as plain:
        plain.sendall(get("/health"))
        assert not plain.recv(1)


def test_server_answers_at_its_ipv4_and_ipv6_addresses(site):
    assert [address.rpartition(":")[0] for address in site.server.addresses] == [
        "https://127.0.0.1",
        "https://[::1]",
    ]
    for address in site.server.addresses:
        assert site.ask(get("/v1/models", bearer("alpha")), address).status == 200


def test_valid_key_is_required_except_for_health(site):
    for field in ((), (bearer("gamma"),), ("Authorization: Basic alpha",)):
        for path in ("/v1/completions", "/v3/completions"):
            answer = site.ask(completion(*field, path=path))
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == 'Bearer realm="fastovms"'
        assert site.ask(get("/nowhere", *field)).status == 401
    for key in ("alpha", "beta"):
        assert site.ask(completion(bearer(key), max_tokens=1)).status == 200
    assert site.ask(get("/health")).status == site.ask(get("/v2/health/ready")).status == 200


OTHER_SPELLINGS = ("//v1/{}", "/v1//{}", "/v1/v1/{}", "/v1/{}/", "///v3//v3/{}//")


@pytest.mark.parametrize("spelling", OTHER_SPELLINGS)
def test_other_spellings_of_paths_need_a_key(site, spelling):
    path = spelling.format("completions")
    for field in ((), (bearer("gamma"),)):
        assert site.ask(completion(*field, path=path)).status == 401
        assert site.ask(get("/models", *field)).status == 401
    answer = site.ask(completion(bearer("alpha"), path=path, max_tokens=1))
    assert answer.status == 200, answer.body
    assert site.ask(get("/models", bearer("alpha"))).status == 200


# What Chromium 156 sends for a page of another site.
CHROMIUM = (
    "Connection: keep-alive",
    'sec-ch-ua-platform: "Linux"',
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "HeadlessChrome/156.0.0.0 Safari/537.36",
    'sec-ch-ua: "Not:A-Brand";v="8", "Chromium";v="156"',
    "sec-ch-ua-mobile: ?0",
    "Accept: */*",
    "Sec-Fetch-Dest: empty",
    "Referer: http://127.0.0.1:40457/",
    "Accept-Encoding: gzip, deflate, br, zstd",
    "Accept-Language: en-US,en;q=0.9",
)
OTHER_PORT = ("Origin: http://127.0.0.1:40457", "Sec-Fetch-Site: same-site")
OTHER_SITE = ("Origin: http://evil.example:40457", "Sec-Fetch-Site: cross-site")
URLENCODED = "Content-Type: application/x-www-form-urlencoded"


def num_prompts(server: ServerProcess) -> float:
    return server.metrics()["prompt_tokens_total"]


@pytest.fixture(scope="module")
def open_server() -> Iterator[ServerProcess]:
    """On loopback, without a key."""
    with server_process() as server:
        yield server


@pytest.mark.parametrize("page", [OTHER_PORT, OTHER_SITE])
def test_page_of_another_site_is_refused_and_computes_nothing(open_server, page):
    """Nothing is computed for it, and it can read nothing."""
    preflight = ("Access-Control-Request-Method: POST",)
    requests = [
        completion(*page, "Sec-Fetch-Mode: no-cors", *CHROMIUM, *content)
        for content in ((), (URLENCODED,), ("Content-Type: text/plain",))
    ]
    requests += [
        completion(*page, "Sec-Fetch-Mode: cors", *CHROMIUM, "Content-Type: application/json"),
        get("/v1/completions", *page, *preflight, *CHROMIUM).replace(b"GET", b"OPTIONS", 1),
        get("/metrics", *page, "Sec-Fetch-Mode: cors", *CHROMIUM),
        get("/v1/models", page[1], "Sec-Fetch-Mode: no-cors", *CHROMIUM),
        get("/health", *page, "Sec-Fetch-Mode: cors", *CHROMIUM),
    ]
    before = num_prompts(open_server)
    for request in requests:
        answer = open_server.ask(request)
        assert answer.status == 403, request
        assert "access-control-allow-origin" not in answer.headers
    below_v3 = open_server.ask(completion(*page, path="/v3/completions"))
    assert (below_v3.status, below_v3.body[:11]) == (403, b'{"error":"p')
    assert num_prompts(open_server) == before


def test_rebound_name_is_refused_with_421(open_server):
    own = (f"Origin: http://evil.example:{open_server.port}", "Sec-Fetch-Site: same-origin")
    before = num_prompts(open_server)
    for request in (
        completion(*own, *CHROMIUM, "Content-Type: application/json"),
        get("/v1/models", own[1], *CHROMIUM),
    ):
        host = f"Host: evil.example:{open_server.port}".encode()
        for _ in range(3):
            # The same path is asked under an own name in between.
            answer = open_server.ask(request.replace(b"Host: localhost", host))
            assert answer.status == 421
            assert b"--allowed-hosts evil.example" in answer.body
            assert open_server.status("/v1/models") == 200
    assert num_prompts(open_server) == before


@pytest.mark.nightly
def test_unix_socket_accepts_any_host_name(tmp_path):
    """And what it is answered there is not repeated to those who may not use that name."""
    path = tmp_path / "api.sock"
    request = get("/v1/models").replace(b"localhost", b"evil.example")
    with server_process("--uds", str(path)) as server:
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                for _ in range(4):
                    assert ask(connection, request).status == 200
            assert server.ask(request).status == 421


@pytest.mark.nightly
def test_host_check_follows_the_address_of_an_inherited_socket():
    """What they listen on decides, not what flags say."""
    request = get("/v1/models").replace(b"localhost", b"evil.example")
    for address, status in (("127.0.0.1", 421), ("0.0.0.0", 200)):
        with (
            socket.create_server((address, 0)) as listener,
            server_process("--host", "127.0.0.1", inherited=listener) as server,
        ):
            assert server.ask(request).status == status


def test_reload_replaces_valid_files_and_keeps_others(site):
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
    assert sum("cannot reload: " in line for line in site.server.errors) == 2
    assert (
        "reloaded certificates, keys and log files, except those with errors"
        in site.server.errors[-1]
    )
    assert "delta" not in "".join(site.server.errors)
    deadline = time.monotonic() + 60
    while "/v1/models" not in (site.folder / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "/v1/models status=200" in (site.folder / "log").read_text()


def test_unix_socket_without_a_port_needs_its_key(tmp_path):
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


def test_operators_see_and_cancel_the_work_of_every_key_and_a_removed_key_loses_its_own(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\nroot admin\n")
    with server_process("--api-key-file", str(keys)) as server:

        def work(key: str, suffix: str = "") -> Answer:
            method = b"POST" if suffix else b"GET"
            request = get(f"/v1/work{suffix}", bearer(key)).replace(b"GET", method, 1)
            return server.ask(request)

        def listed() -> list[dict[str, str]]:
            found = json.loads(work("root").body)["data"]
            return [item for item in found if item["detail"] != "/v1/work"]

        def wait_for(count: int) -> list[dict[str, str]]:
            deadline = time.monotonic() + 60
            while len(found := listed()) != count:
                assert time.monotonic() < deadline, found
                time.sleep(0.02)
            return found

        assert work("alpha").status == work("beta", "/x/cancel").status == 403
        assert work("root", "/x/cancel").status == 404
        endless = {"max_tokens": 100_000, "stream": True, "ignore_eos": True}
        with server.connect() as of_alpha, server.connect() as of_beta:
            for connection, key in ((of_alpha, "alpha"), (of_beta, "beta")):
                connection.sendall(completion(bearer(key), **endless))
                connection.recv(1)
            found = wait_for(2)
            assert {item["kind"] for item in found} == {"request"}
            assert len({item["key"] for item in found}) == 2
            [beta] = [item for item in found if item["key"] == digest("beta")]
            assert work("root", f"/{beta['id']}/cancel").status == 200
            with suppress(ConnectionResetError):
                read_to_end(of_beta)
            assert [item["key"] for item in wait_for(1)] == [digest("alpha")]
            keys.write_text("beta\nroot admin\n")
            server.signal(signal.SIGHUP)
            with suppress(ConnectionResetError):
                read_to_end(of_alpha)
            wait_for(0)
        assert server.ask(completion(bearer("alpha"))).status == 401
        assert server.ask(completion(bearer("beta"), max_tokens=1)).status == 200


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]
