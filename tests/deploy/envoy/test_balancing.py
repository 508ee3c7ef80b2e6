"""The configuration of static replicas in the real Envoy, before fakes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.envoy.render import render, write_endpoints
from tests.deploy.client import DEADLINE, ask, connected, json_of
from tests.deploy.envoy.process import Envoy, needs_envoy, running_envoy
from tests.deploy.fleet import CHATS, Fleet, large_chat
from tests.deploy.fleet import chat as chat_body
from tests.deploy.replica import Replica, replicas

pytestmark = needs_envoy

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@dataclass(frozen=True)
class EnvoyFleet(Fleet):
    """Replicas behind an Envoy, which runs in `folder`."""

    envoy: Envoy
    folder: Path

    async def wait_for_stat(self, name: str, value: int) -> None:
        for cluster in ("replicas", "replicas_by_key"):
            await asyncio.to_thread(self.envoy.wait_for_stat, f"cluster.{cluster}.{name}", value)

    async def wait_for_healthy(self, count: int) -> None:
        await self.wait_for_stat("membership_healthy", count)

    async def names(self, count: int, session: str) -> set[str]:
        """Asks so often in one session, and returns the names of the replicas that answer."""
        answers = [
            await ask(self.port, "POST", CHATS, chat("Hi"), x_session_id=session)
            for _ in range(count)
        ]
        assert {answer.status for answer in answers} == {200}
        return {json_of(answer)["replica"] for answer in answers}

    async def home_and_other(self) -> tuple[Replica, Replica]:
        """Returns the replica of session "s", of two, and the other one."""
        [name] = await self.names(1, "s")
        home, other = self.with_other(name)
        return home, other


@asynccontextmanager
async def fleet(folder: Path, *names: str) -> AsyncIterator[EnvoyFleet]:
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


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[EnvoyFleet]:
    async with fleet(tmp_path, "a") as running:
        yield running


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[EnvoyFleet]:
    async with fleet(tmp_path, "a", "b") as running:
        yield running


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[EnvoyFleet]:
    async with fleet(tmp_path, "a", "b", "c") as running:
        yield running


def chat(*texts: str, **members: object) -> bytes:
    return json.dumps(chat_body(*texts, **members)).encode()


# Affinity


async def test_the_turns_of_a_chat_meet_at_one_replica(three):
    homes = set()
    for number in range(24):
        turns = (f"Chat {number}", "Hello!", "How are you?")
        names = [
            json_of(await ask(three.port, "POST", CHATS, chat(*turns[:length])))["replica"]
            for length in (1, 3)
        ]
        assert names[0] == names[1]
        homes.add(names[0])
    assert homes == {"a", "b", "c"}


async def test_requests_without_a_key_go_to_all(three):
    for body in (None, b"no JSON", b"{}"):
        method = "GET" if body is None else "POST"
        answers = [await ask(three.port, method, "/v1/models", body) for _ in range(30)]
        assert {json_of(answer)["replica"] for answer in answers} == {"a", "b", "c"}


@pytest.mark.parametrize(("body", "has_key"), [(chat("Hi"), True), (b"no JSON", False)])
async def test_a_key_of_the_client_is_not_believed(one, body, has_key):
    answer = await ask(one.port, "POST", CHATS, body, x_fastovms_affinity="00000000")
    key = json_of(answer)["headers"].get("x-fastovms-affinity")
    assert (key is not None) == has_key
    assert key != "00000000"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "framing"), [(60_000_000, {}), (2_000_000, {"transfer_encoding": "chunked"})]
)
async def test_large_bodies_pass_with_their_keys(three, size, framing):
    """What is more than Envoy holds, up to the largest that a replica takes."""
    asked = [chat("Large"), large_chat("Large", size)]
    answers = [json_of(await ask(three.port, "POST", CHATS, body, **framing)) for body in asked]
    assert len({answer["replica"] for answer in answers}) == 1
    assert [answer["length"] for answer in answers] == [len(body) for body in asked]


@pytest.mark.nightly
async def test_replica_gets_no_more_than_its_share_of_one_key(three):
    """Of what all comes with one key at once, no replica gets more than 1.5 times the mean."""
    tasks = []
    for _ in range(30):
        tasks.append(asyncio.create_task(ask(three.port, "POST", "/slow", chat("Hi"))))
        await three.arrival()
    assert max(three.num_asked) <= 1.5 * 30 / 3 + 1  # and the one that is to come
    for replica in three.replicas:
        replica.release.set()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}


# What passes


async def test_the_frames_of_a_stream_come_one_by_one(one):
    [replica] = one.replicas
    async with connected(one.port) as client:
        await client.send("GET", "/stream")
        for number in range(5):
            # The next frame is not made before this one is there.
            replica.frames.put_nowait(b"data: %d\n\n" % number)
            await client.read_until(b"data: %d\n\n" % number)
        replica.frames.put_nowait(None)
        await client.read_until(b"0\r\n\r\n")


async def test_stream_of_a_disconnected_client_is_cancelled_at_the_replica(one):
    [replica] = one.replicas
    async with connected(one.port) as client:
        await client.send("GET", "/stream")
        await one.arrival()
    async with asyncio.timeout(DEADLINE):
        await replica.cancelled.wait()


async def test_request_keeps_its_id_and_trace_in_answer_and_log(one):
    [replica] = one.replicas
    ids = {"x_request_id": "mine", "traceparent": TRACE}
    answer = await ask(one.port, "POST", CHATS, chat("Hi"), **ids)
    seen = json_of(answer)["headers"]
    assert (seen["x-request-id"], seen["traceparent"]) == ("mine", TRACE)
    assert answer.headers["x-request-id"] == "mine"
    entry = await asyncio.to_thread(one.envoy.access_log, "mine")
    assert entry["traceparent"] == TRACE
    assert entry["affinity"] == seen["x-fastovms-affinity"]
    assert (entry["status"], entry["path"], entry["attempts"]) == (200, CHATS, 1)
    assert entry["replica"] == replica.address
    answer = await ask(one.port, "POST", CHATS, chat("Hi"))
    made = answer.headers["x-request-id"]
    assert json_of(answer)["headers"]["x-request-id"] == made
    await asyncio.to_thread(one.envoy.access_log, made)


async def test_clients_reach_allowed_paths_only(one):
    [replica] = one.replicas
    for path in ("/metrics", "/metrics/", "/%6Detrics", "//metrics", "/v1/../metrics", "/METRICS"):
        answer = await ask(one.port, "GET", path)
        assert answer.status == 404, path
        assert json_of(answer)["error"]["type"] == "invalid_request_error"
    for path in ("/health", "/ready", "/ping", "/v2/health/ready", "/v2/health/live", "/health/"):
        assert (await ask(one.port, "GET", path)).status == 200
    assert replica.requests == []
    for path in ("/v1/config", "/docs", "/openapi.json", "/version", "//v1//models"):
        assert json_of(await ask(one.port, "GET", path))["replica"] == "a"


# What happens to replicas


async def test_request_refused_by_a_full_replica_is_asked_once_elsewhere(two):
    """Another is asked once; a client is told so when that is full, too."""
    home, other = await two.home_and_other()
    home.is_full = True
    for _ in range(10):
        two.forget()
        assert await two.names(1, "s") == {other.name}
        assert two.num_asked == [1, 1]
    other.is_full = True
    two.forget()
    answer = await ask(two.port, "POST", CHATS, chat("Hi"), x_session_id="s")
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert json_of(answer) == {"error": {"message": "full"}}
    assert two.num_asked == [1, 1]
    home.is_full = False
    assert await two.names(1, "s") == {home.name}  # to be full is no reason for an ejection


async def test_killed_replica_ends_its_own_streams_only(two):
    """Its own streams end, what it has begun is not asked again, and nobody else notices."""
    home, other = await two.home_and_other()
    async with connected(two.port) as stream, connected(two.port) as begun:
        await stream.send("GET", "/stream", x_session_id="s")
        assert await two.arrival() is home
        home.frames.put_nowait(b"data: 1\n\n")
        await stream.read_until(b"data: 1\n\n")
        await begun.send("POST", "/slow", chat("Hi"), x_session_id="s")
        assert await two.arrival() is home
        two.forget()
        address = home.address
        await home.kill()
        assert await stream.read() == b""
        answer = await begun.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert json_of(answer)["error"]["type"] == "server_error"
        assert other.requests == []
    large = large_chat("Hi", 5_000_000)
    assert (await ask(two.port, "POST", CHATS, large, x_session_id="s")).status == 200
    assert await two.names(20, "s") == {other.name}
    await home.start(address)
    await two.wait_for_healthy(2)
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
        assert home.requests == []
        home.release.set()
        assert json_of(await client.answer())["replica"] == home.name


async def test_unlisted_replica_finishes_its_streams_and_gets_no_requests(two):
    """It finishes what it does, and gets nothing new."""
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


@pytest.mark.nightly
async def test_request_without_a_healthy_replica_fails_with_503(one):
    one.replicas[0].is_ready = False
    await one.wait_for_healthy(0)
    answer = await ask(one.port, "POST", CHATS, chat("Hi"), x_request_id="mine")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "mine"
    assert json_of(answer)["error"] == {
        "message": "no healthy upstream",
        "type": "server_error",
        "param": None,
        "code": "no_healthy_upstream",
    }
    answer = await ask(one.port, "POST", "/v3/chat/completions", chat("Hi"))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert json_of(answer) == {"error": "no healthy upstream"}
    assert (await ask(one.port, "GET", "/ready")).status == 503
    assert (await ask(one.port, "GET", "/v2/health/live")).status == 200
