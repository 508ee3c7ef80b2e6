"""Tests of the configurations of static replicas in real Envoy and HAProxy, with fake replicas."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.envoy.render import render, write_endpoints
from fastovms.config import HttpConfig
from tests.deploy.client import DEADLINE, ask, connected, json_of
from tests.deploy.envoy.process import Envoy, needs_envoy, running_envoy
from tests.deploy.fleet import CHATS, Fleet, large_chat
from tests.deploy.fleet import chat as chat_body
from tests.deploy.replica import Replica, replicas
from tests.paths import ROOT

CONFIGURATION = ROOT / "deploy/haproxy/haproxy.cfg"
TLS = ROOT / "tests/http/tls"
HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ID = "resp_0a1b2c3d" + "e" * 24

needs_haproxy = pytest.mark.skipif(
    HAPROXY is None, reason="haproxy is missing: apt-get install haproxy"
)
ENVOY = pytest.param("envoy", marks=needs_envoy)
in_envoy = pytest.mark.parametrize("balancer", [ENVOY])
in_haproxy = pytest.mark.parametrize("balancer", [pytest.param("haproxy", marks=needs_haproxy)])


@dataclass(frozen=True)
class BalancedFleet(Fleet):
    """Replicas behind a balancer."""

    async def names(self, count: int, session: str) -> set[str]:
        """Sends the given number of requests of one session over one connection, so that a balancer
        completes each request before the next one. Returns the names of the replicas that answered.
        """
        async with connected(self.port) as client:
            answers = [
                await client.ask("POST", CHATS, chat("Hi"), x_session_id=session)
                for _ in range(count)
            ]
        assert {answer.status for answer in answers} == {200}
        return {json_of(answer)["replica"] for answer in answers}

    async def home_and_other(self) -> tuple[Replica, Replica]:
        """Returns the replica of session "s" and the other one of two."""
        [name] = await self.names(1, "s")
        home, other = self.with_other(name)
        return home, other

    async def key(self, path: str, body: object, **headers: str) -> str | None:
        """Returns the key in a replica's request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await ask(self.port, "POST", path, data, **headers)
        key: str | None = json_of(answer)["headers"].get("x-fastovms-affinity")
        return key

    async def access_log(self, request_id: str) -> dict[str, Any]:
        """Returns the line of a request, which a balancer writes after the answer."""
        raise NotImplementedError

    async def wait_for_healthy(self, count: int) -> None:
        """Returns when the given number of replicas get requests."""
        raise NotImplementedError


# Envoy


@dataclass(frozen=True)
class EnvoyFleet(BalancedFleet):
    """Replicas behind an Envoy that runs in `folder`."""

    envoy: Envoy
    folder: Path

    async def wait_for_stat(self, name: str, value: int) -> None:
        for cluster in ("replicas", "replicas_by_key"):
            await asyncio.to_thread(self.envoy.wait_for_stat, f"cluster.{cluster}.{name}", value)

    async def wait_for_healthy(self, count: int) -> None:
        await self.wait_for_stat("membership_healthy", count)

    async def access_log(self, request_id: str) -> dict[str, Any]:
        return await asyncio.to_thread(self.envoy.access_log, request_id)


@asynccontextmanager
async def envoy_fleet(folder: Path, *names: str) -> AsyncIterator[EnvoyFleet]:
    async with replicas(*names) as running:
        bootstrap = render(
            folder,
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            replicas=[replica.address for replica in running],
            plain=True,
        )
        with ExitStack() as stack:
            envoy = await asyncio.to_thread(stack.enter_context, running_envoy(bootstrap))
            started = EnvoyFleet(envoy.port("clients"), running, envoy, folder)
            await started.wait_for_healthy(len(names))
            yield started
            assert envoy.stat("http.affinity.lua.errors") == 0


# HAProxy


@dataclass(frozen=True)
class HaproxyFleet(BalancedFleet):
    """Replicas behind a HAProxy."""

    log: Path

    async def access_log(self, request_id: str) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE):
            while True:
                for line in self.log.read_text().splitlines():
                    if line.startswith("{") and f'"{request_id}"' in line:
                        return dict(json.loads(line))
                await asyncio.sleep(0.02)

    async def wait_for_healthy(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while len(await self._names_of_sessions()) != count:
                pass

    async def _names_of_sessions(self) -> set[str]:
        sessions = [f"session {number}" for number in range(8)]
        answers = [
            await ask(self.port, "POST", CHATS, b"{}", x_session_id=session) for session in sessions
        ]
        return {json_of(answer)["replica"] for answer in answers if answer.status == 200}


def configuration(bind: str, addresses: list[str]) -> str:
    """Returns the configuration file for these addresses."""
    kept = re.sub(r"^    server .*\n", "", CONFIGURATION.read_text(), flags=re.MULTILINE)
    servers = "".join(f"    server {n} {address}\n" for n, address in enumerate(addresses))
    return re.sub(r"^    bind \S+", f"    bind {bind}", kept, flags=re.MULTILINE) + servers


@contextmanager
def running_haproxy(folder: Path, listener: socket.socket) -> Iterator[Path]:
    """Runs HAProxy with the folder's file; yields its log."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(HAPROXY), "-db", "-f", str(folder / "haproxy.cfg")],
            pass_fds=(listener.fileno(),),
            stdout=output,
            stderr=output,
        )
    try:
        yield log
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def haproxy_fleet(
    folder: Path, *names: str, tls: bool = False
) -> AsyncIterator[HaproxyFleet]:
    certificate = folder / "fastovms.pem"
    certificate.write_text("".join((TLS / f"first.{end}").read_text() for end in ("crt", "key")))
    async with replicas(*names) as running:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            addresses = [replica.address for replica in running]
            text = configuration(f"fd@{listener.fileno()}", addresses)
            if not tls:
                text = text.replace("ssl crt /etc/haproxy/fastovms.pem alpn h2,http/1.1", "")
            text = text.replace("/etc/haproxy/fastovms.pem", str(certificate))
            (folder / "haproxy.cfg").write_text(text)
            with running_haproxy(folder, listener) as log:
                yield HaproxyFleet(listener.getsockname()[1], running, log)


# Both


@pytest.fixture(params=[ENVOY, pytest.param("haproxy", marks=needs_haproxy)])
def balancer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fleet(
    balancer: str, folder: Path, *names: str
) -> AbstractAsyncContextManager[EnvoyFleet | HaproxyFleet]:
    return (envoy_fleet if balancer == "envoy" else haproxy_fleet)(folder, *names)


@pytest.fixture
async def one(balancer: str, tmp_path: Path) -> AsyncIterator[BalancedFleet]:
    async with fleet(balancer, tmp_path, "a") as running:
        yield running


@pytest.fixture
async def two(balancer: str, tmp_path: Path) -> AsyncIterator[BalancedFleet]:
    async with fleet(balancer, tmp_path, "a", "b") as running:
        yield running


def chat(*texts: str, **members: object) -> bytes:
    return json.dumps(chat_body(*texts, **members)).encode()


def crc(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


# Affinity


async def test_turns_of_a_chat_meet_at_one_replica(two):
    homes = set()
    for number in range(24):
        turns = (f"Chat {number}", "Hello!", "How are you?")
        async with connected(two.port) as client:
            names = [
                json_of(await client.ask("POST", CHATS, chat(*turns[:length])))["replica"]
                for length in (1, 3)
            ]
        assert names[0] == names[1]
        homes.add(names[0])
    assert homes == {"a", "b"}


async def test_requests_without_a_key_go_to_all(two):
    for body in (None, b"no JSON", b"{}"):
        method = "GET" if body is None else "POST"
        answers = [await ask(two.port, method, "/v1/models", body) for _ in range(30)]
        assert {json_of(answer)["replica"] for answer in answers} == {"a", "b"}


@pytest.mark.parametrize(("body", "has_key"), [(chat("Hi"), True), (b"no JSON", False)])
async def test_key_that_a_client_sends_is_replaced(one, body, has_key):
    key = await one.key(CHATS, body, x_fastovms_affinity="00000000")
    assert (key is not None) == has_key
    assert key != "00000000"


@in_haproxy
async def test_affinity_key_is_read_from_path_body_and_headers(one):
    with_id = {"x": {"user": "no"}, "previous_response_id": ID, "user": "u"}
    for path, body, session, expected in [
        ("/v1/responses", with_id, "s", "0a1b2c3d"),
        ("/v1/responses", {"conversation": ID.replace("resp", "conv")}, "s", "0a1b2c3d"),
        ("/v1/responses", {"conversation": {"id": "conv_x"}}, "s", crc("conv_x")),
        (f"/v1/responses/{ID}/cancel", b"", "", "0a1b2c3d"),
        ("/v1/conversations/conv_x/items", {"items": []}, "", crc("conv_x")),
        (CHATS, {"prompt_cache_key": "k", "user": "u"}, "s", crc("k")),
        (CHATS, {"user": "u"}, "s", crc("s")),
        (CHATS, {"user": "u"}, "", crc("u")),
        (CHATS, {"prompt": "x" * 600}, "", crc("x" * 512)),
        (CHATS, {"input": "x" * 5000}, "", crc("x" * 4096)),
        (CHATS, {"model": "m"}, "", None),
        (CHATS, {}, "", None),
        (CHATS, b'{"user": "u', "", None),
        ("/v1/responses", {"input": [{"role": "user", "content": "Hi"}]}, "", crc("Hi")),
        ("/v1/responses", {"input": [{"content": [{"text": "Hi"}]}]}, "", crc("Hi")),
        (CHATS, {"messages": [{"content": [{"text": "Hi"}], "role": "user"}]}, "", crc("Hi/")),
        (CHATS, b"[" * 200_000, "", None),
        (CHATS, b'{"a":' * 100_000, "", None),
        (CHATS, b"\x00" * 1000, "", None),
        (CHATS, b'{"user": "u", "file": "' + b"x" * 200_000, "", crc("u")),
    ]:
        headers = {"x_session_id": session} if session else {}
        key = await one.key(path, body, **headers)
        assert key == expected, (path, body[:40] if isinstance(body, bytes) else body)


async def test_replica_gets_no_more_than_its_share_of_one_key(two):
    """No replica gets more than 1.5 times the mean of concurrent requests with one key."""
    tasks = []
    for _ in range(20):
        tasks.append(asyncio.create_task(ask(two.port, "POST", "/slow", chat("Hi"))))
        await two.arrival()
    assert max(two.num_asked) <= 1.5 * 20 / 2 + 1  # and the one that is being received
    for replica in two.replicas:
        replica.release.set()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}


# Forwarding


async def test_frames_of_a_stream_come_one_by_one_until_the_client_leaves(one):
    [replica] = one.replicas
    async with connected(one.port) as client:
        await client.send("GET", "/stream")
        for number in range(5):
            # The next frame is generated only after this one was received.
            replica.frames.put_nowait(b"data: %d\n\n" % number)
            await client.read_until(b"data: %d\n\n" % number)
    async with asyncio.timeout(DEADLINE):
        await replica.cancelled.wait()


@pytest.mark.nightly(but=("envoy-2000000",))
@pytest.mark.parametrize(
    ("size", "framing"), [(60_000_000, {}), (2_000_000, {"transfer_encoding": "chunked"})]
)
async def test_large_body_passes_with_its_key(one, size, framing):
    """A body larger than a balancer's buffer, up to the largest that a replica accepts."""
    body = large_chat("Large", size)
    answer = json_of(await ask(one.port, "POST", CHATS, body, **framing))
    assert answer["length"] == len(body)
    assert answer["headers"]["x-fastovms-affinity"] == await one.key(CHATS, chat("Large"))


async def test_request_keeps_its_id_and_trace_in_answer_and_log(one, balancer):
    [replica] = one.replicas
    ids = {"x_request_id": "mine", "traceparent": TRACE}
    answer = await ask(one.port, "POST", CHATS, chat("Hi"), **ids)
    seen = json_of(answer)["headers"]
    assert (seen["x-request-id"], seen["traceparent"]) == ("mine", TRACE)
    entry = await one.access_log("mine")
    assert (entry["status"], entry["path"], entry["traceparent"]) == (200, CHATS, TRACE)
    assert entry["affinity"] == seen["x-fastovms-affinity"]
    if balancer == "envoy":
        assert answer.headers["x-request-id"] == "mine"
        assert (entry["attempts"], entry["replica"]) == (1, replica.address)
        answer = await ask(one.port, "POST", CHATS, chat("Hi"))
        made = answer.headers["x-request-id"]
        assert json_of(answer)["headers"]["x-request-id"] == made
        await one.access_log(made)


async def test_clients_reach_allowed_paths_only(one):
    [replica] = one.replicas
    for path in ("/metrics", "/metrics/", "/%6Detrics", "//metrics", "/v1/../metrics", "/METRICS"):
        answer = await ask(one.port, "GET", path)
        assert answer.status == 404, path
        assert json_of(answer)["error"]["type"] in ("invalid_request_error", "not_found_error")
    for path in ("/health", "/ready", "/ping", "/v2/health/ready", "/v2/health/live", "/health/"):
        assert (await ask(one.port, "GET", path)).status == 200
    assert replica.requests == []
    for path in ("/v1/config", "/docs", "/openapi.json", "/version", "//v1//models"):
        assert json_of(await ask(one.port, "GET", path))["replica"] == "a"


@in_haproxy
async def test_listener_negotiates_http2_over_tls(tmp_path, balancer):
    async with haproxy_fleet(tmp_path, "a", tls=True) as running:
        context = ssl.create_default_context(cafile=str(TLS / "first.crt"))
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection(
            "127.0.0.1", running.port, ssl=context, server_hostname="localhost"
        )
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()


# Faults of replicas


async def test_request_refused_by_a_full_replica_is_asked_once_elsewhere(two):
    """It is sent to one other replica; if that is full as well, the client gets the refusal."""
    home, other = await two.home_and_other()
    home.is_full = True
    two.forget()
    assert await two.names(10, "s") == {other.name}
    assert other.num_asked == 10
    assert 0 < home.num_asked <= 10
    other.is_full = True
    two.forget()
    answer = await ask(two.port, "POST", CHATS, chat("Hi"), x_session_id="s")
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert json_of(answer) == {"error": {"message": "full"}}
    assert two.num_asked == [1, 1]
    home.is_full = False
    assert await two.names(1, "s") == {home.name}  # a full replica must not be ejected


@pytest.mark.nightly(but=("[envoy-/slow]", "[haproxy-/stream]"))
@pytest.mark.parametrize("path", ["/stream", "/slow"])
async def test_killed_replica_ends_its_own_requests_only(two, balancer, path):
    """Its own requests end and are not repeated, and no other client is affected."""
    home, other = await two.home_and_other()
    async with connected(two.port) as client:
        ask_for = ("GET", path) if path == "/stream" else ("POST", path, chat("Hi"))
        await client.send(*ask_for, x_session_id="s")
        assert await two.arrival() is home
        if path == "/stream":
            home.frames.put_nowait(b"data: 1\n\n")
            await client.read_until(b"data: 1\n\n")
        two.forget()
        address = home.address
        await home.kill()
        if path == "/stream":
            assert await client.read() == b""
        else:
            answer = await client.answer()
            assert answer.status == {"envoy": 503, "haproxy": 502}[balancer]
            assert json_of(answer)["error"]["type"] == "server_error"
        assert other.requests == []
    large = large_chat("Hi", 5_000_000)
    assert (await ask(two.port, "POST", CHATS, large, x_session_id="s")).status == 200
    assert await two.names(20, "s") == {other.name}
    await home.start(address)
    await two.wait_for_healthy(2)
    if balancer == "envoy":
        await two.wait_for_stat("outlier_detection.ejections_active", 0)
    assert await two.names(5, "s") == {home.name}


async def test_draining_replica_gets_no_new_requests(two):
    home, other = await two.home_and_other()
    async with connected(two.port) as client:
        await client.send("POST", "/slow", chat("Hi"), x_session_id="s")
        assert await two.arrival() is home
        home.is_ready = False
        await two.wait_for_healthy(1)
        home.requests.clear()
        assert await two.names(10, "s") == {other.name}
        assert home.num_asked == 0
        home.release.set()
        assert json_of(await client.answer())["replica"] == home.name


@in_envoy
async def test_unlisted_replica_finishes_its_streams_and_gets_no_requests(two):
    """It finishes its streams and gets no new requests."""
    home, other = await two.home_and_other()
    async with connected(two.port) as client:
        await client.send("GET", "/stream", x_session_id="s")
        assert await two.arrival() is home
        write_endpoints(two.folder, [other.address])
        await two.wait_for_healthy(1)
        assert await two.names(10, "s") == {other.name}
        home.frames.put_nowait(b"data: 1\n\n")
        home.frames.put_nowait(None)
        await client.read_until(b"0\r\n\r\n")


@pytest.mark.nightly(but=("[envoy]",))
async def test_request_without_a_healthy_replica_fails_with_503(one, balancer):
    message, code = {
        "envoy": ("no healthy upstream", "no_healthy_upstream"),
        "haproxy": ("no replica is ready", "no_replica"),
    }[balancer]
    one.replicas[0].is_ready = False
    await one.wait_for_healthy(0)
    answer = await ask(one.port, "POST", CHATS, chat("Hi"))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"] == "application/json"
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    assert json_of(answer)["error"] == error
    answer = await ask(one.port, "POST", "/v3/chat/completions", chat("Hi"))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert json_of(answer) == {"error": message}
    assert (await ask(one.port, "GET", "/ready")).status == 503


def test_time_outs_are_beyond_those_of_a_replica():
    text = CONFIGURATION.read_text()
    [purge] = re.findall(r"pool-purge-delay (\d+)s", text)
    assert 2 * int(purge) < HttpConfig().keep_alive_timeout
    [server] = re.findall(r"timeout server (\d+)h", text)
    assert int(server) * 3600 > 100 * HttpConfig().ping_interval
