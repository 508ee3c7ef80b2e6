"""The configuration in the real HAProxy, before fakes."""

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
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastovms.config import HttpConfig
from tests.deploy.client import DEADLINE, ask, connected, json_of
from tests.deploy.fleet import CHATS, Fleet, chat, large_chat
from tests.deploy.replica import Replica, replicas
from tests.paths import ROOT

CONFIGURATION = ROOT / "deploy/haproxy/haproxy.cfg"
TLS = ROOT / "tests/http/tls"
ID = "resp_0a1b2c3d" + "e" * 24

HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin")

pytestmark = pytest.mark.skipif(
    HAPROXY is None, reason="haproxy is missing: apt-get install haproxy"
)


@dataclass(frozen=True)
class HaproxyFleet(Fleet):
    """Replicas behind a HAProxy."""

    log: Path

    async def names(self, count: int, session: str) -> set[str]:
        """Asks so often in one session, over one connection: HAProxy is then done with a request
        before the next one comes. Returns the names of the replicas that answer."""
        async with connected(self.port) as client:
            answers = [
                await client.ask("POST", CHATS, b"{}", x_session_id=session) for _ in range(count)
            ]
        assert {answer.status for answer in answers} == {200}
        return {json_of(answer)["replica"] for answer in answers}

    async def key(self, path: str, body: object, **headers: str) -> str | None:
        """Returns the key with which a replica is asked."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await ask(self.port, "POST", path, data, **headers)
        key: str | None = json_of(answer)["headers"].get("x-fastovms-affinity")
        return key

    async def access_log(self, request_id: str) -> dict[str, object]:
        """Returns the line of a request, which HAProxy writes after the answer."""
        async with asyncio.timeout(DEADLINE):
            while True:
                for line in self.log.read_text().splitlines():
                    if line.startswith("{") and f'"{request_id}"' in line:
                        return dict(json.loads(line))
                await asyncio.sleep(0.02)

    async def wait_until_down(self, replica: Replica) -> None:
        """Returns when none of some sessions is answered by the replica."""
        async with asyncio.timeout(DEADLINE):
            while replica.name in await self._names_of_sessions():
                pass

    async def _names_of_sessions(self) -> set[str]:
        sessions = [f"session {number}" for number in range(8)]
        answers = [
            await ask(self.port, "POST", CHATS, b"{}", x_session_id=session) for session in sessions
        ]
        return {json_of(answer)["replica"] for answer in answers if answer.status == 200}


def configuration(bind: str, addresses: list[str]) -> str:
    """The file, for these addresses."""
    kept = re.sub(r"^    server .*\n", "", CONFIGURATION.read_text(), flags=re.MULTILINE)
    servers = "".join(f"    server {n} {address}\n" for n, address in enumerate(addresses))
    return re.sub(r"^    bind \S+", f"    bind {bind}", kept, flags=re.MULTILINE) + servers


@contextmanager
def running_haproxy(folder: Path, listener: socket.socket) -> Iterator[Path]:
    """Runs it with the folder's file; yields its log."""
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
async def fleet(folder: Path, *names: str, tls: bool = False) -> AsyncIterator[HaproxyFleet]:
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


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[HaproxyFleet]:
    async with fleet(tmp_path, "a") as running:
        yield running


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[HaproxyFleet]:
    async with fleet(tmp_path, "a", "b") as running:
        yield running


def crc(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


# Affinity


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
        (CHATS, b"no JSON", "", None),
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
        key = await one.key(path, body, x_fastovms_affinity="00000000", **headers)
        assert key == expected, (path, body[:40] if isinstance(body, bytes) else body)


async def test_the_turns_of_a_chat_have_one_key(one):
    for system in ([], [{"role": "system", "content": "Be kind."}]):
        keys = []
        for turns in (("Hi",), ("Hi", "Hello!", "How are you?")):
            body = chat(*turns)
            body["messages"] = system + body["messages"]
            keys.append(await one.key(CHATS, body))
        assert keys[0] == keys[1] is not None
        body["messages"][len(system)]["content"] = "Ho"
        assert await one.key(CHATS, body) != keys[0]


async def test_equal_keys_meet_at_one_replica(two):
    homes = [await two.names(2, f"session {number}") for number in range(16)]
    assert {len(names) for names in homes} == {1}
    assert set().union(*homes) == {"a", "b"}
    # Those without a key take turns.
    answers = [await ask(two.port, "GET", "/v1/models") for _ in range(4)]
    assert {json_of(answer)["replica"] for answer in answers} == {"a", "b"}


async def test_replica_gets_no_more_than_its_share_of_one_key(two):
    tasks = []
    for _ in range(20):
        asking = ask(two.port, "POST", "/slow", b"{}", x_session_id="s")
        tasks.append(asyncio.create_task(asking))
        await two.arrival()
    assert max(two.num_asked) <= 1.5 * 20 / 2 + 1  # and the one that is to come
    for replica in two.replicas:
        replica.release.set()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}


# What passes


@pytest.mark.nightly
async def test_stream_id_trace_and_large_body_pass_unchanged(one):
    [replica] = one.replicas
    async with connected(one.port) as client:
        await client.send("GET", "/stream")
        for number in range(3):
            replica.frames.put_nowait(b"data: %d\n\n" % number)
            await client.read_until(b"data: %d\n\n" % number)
    async with asyncio.timeout(DEADLINE):
        await replica.cancelled.wait()
    body = large_chat("Large", 60_000_000)
    answer = await ask(one.port, "POST", CHATS, body, x_request_id="mine", traceparent="trace")
    seen = json_of(answer)
    assert seen["length"] == len(body)
    assert seen["headers"]["x-fastovms-affinity"] == await one.key(CHATS, chat("Large"))
    assert (seen["headers"]["x-request-id"], seen["headers"]["traceparent"]) == ("mine", "trace")
    entry = await one.access_log("mine")
    assert (entry["status"], entry["path"], entry["traceparent"]) == (200, CHATS, "trace")
    assert entry["affinity"] == seen["headers"]["x-fastovms-affinity"]


async def test_clients_reach_allowed_paths_only(one):
    for path in ("/metrics", "/metrics/", "/%6Detrics", "//metrics", "/v1/../metrics", "/METRICS"):
        answer = await ask(one.port, "GET", path)
        assert answer.status == 404, path
        assert json_of(answer)["error"]["type"] == "not_found_error"
    for path in ("/health", "/ready", "/ping", "/v2/health/ready", "/v2/health/live", "/health/"):
        assert (await ask(one.port, "GET", path)).status == 200
    assert one.replicas[0].num_asked == 0
    one.replicas[0].is_ready = False
    await one.wait_until_down(one.replicas[0])
    assert (await ask(one.port, "GET", "/ready")).status == 503
    answer = await ask(one.port, "POST", CHATS, b"{}")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert json_of(answer)["error"]["code"] == "no_replica"
    answer = await ask(one.port, "POST", "/v3/chat/completions", b"{}")
    assert (answer.status, json_of(answer)) == (503, {"error": "no replica is ready"})


async def test_listener_negotiates_http2_over_tls(tmp_path):
    async with fleet(tmp_path, "a", tls=True) as running:
        context = ssl.create_default_context(cafile=str(TLS / "first.crt"))
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection(
            "127.0.0.1", running.port, ssl=context, server_hostname="localhost"
        )
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()


# What happens to replicas


async def test_request_refused_by_a_full_replica_is_asked_elsewhere(two):
    [name] = await two.names(1, "s")
    home, other = two.with_other(name)
    home.is_full = True
    two.forget()
    assert await two.names(30, "s") == {other.name}
    assert other.num_asked == 30
    assert 0 < home.num_asked <= 30
    other.is_full = True
    two.forget()
    answer = await ask(two.port, "POST", CHATS, b"{}", x_session_id="s")
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert (home.num_asked, other.num_asked) == (1, 1)


async def test_draining_replica_gets_no_new_requests(two):
    async with connected(two.port) as client:
        await client.send("POST", "/slow", b"{}", x_session_id="s")
        busy, other = two.with_other((await two.arrival()).name)
        busy.is_ready = False
        await two.wait_until_down(busy)
        two.forget()
        assert await two.names(10, "s") == {other.name}
        assert busy.num_asked == 0
        busy.release.set()
        assert json_of(await client.answer())["replica"] == busy.name


async def test_request_of_a_killed_replica_fails_with_502(two):
    """The request is not asked again, and nobody else notices."""
    async with connected(two.port) as client:
        await client.send("POST", "/slow", b"{}", x_session_id="s")
        killed, other = two.with_other((await two.arrival()).name)
        await killed.kill()
        answer = await client.answer()
        assert (answer.status, json_of(answer)["error"]["code"]) == (502, "replica_ended")
    assert other.num_asked == 0
    assert await two.names(20, "s") == {other.name}


@pytest.mark.nightly
async def test_stream_of_a_killed_replica_ends(two):
    """The stream ends, and nobody else notices."""
    async with connected(two.port) as client:
        await client.send("GET", "/stream", x_session_id="s")
        killed, other = two.with_other((await two.arrival()).name)
        killed.frames.put_nowait(b"data: 1\n\n")
        await client.read_until(b"data: 1\n\n")
        await killed.kill()
        assert await client.read() == b""
    assert await two.names(20, "s") == {other.name}


def test_time_outs_are_beyond_those_of_a_replica():
    text = CONFIGURATION.read_text()
    [purge] = re.findall(r"pool-purge-delay (\d+)s", text)
    assert 2 * int(purge) < HttpConfig().keep_alive_timeout
    [server] = re.findall(r"timeout server (\d+)h", text)
    assert int(server) * 3600 > 100 * HttpConfig().ping_interval
