"""Tests of `fastovms/parts/ray_serve` and `deploy/ray`: single parts, and a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest
import yaml
from openai.types import Completion
from prometheus_client.parser import text_string_to_metric_families

from bench.common.process import listening_port
from fastovms.config import EngineConfig
from fastovms.errors import BackendUnavailable, ConfigurationError
from fastovms.parts.ray_serve.child_server import (
    ChildServer,
    ReplicaOptions,
    queue_lengths,
    replica_options,
    replicas_for_queues,
)
from tests.connections import serving
from tests.paths import ROOT

if TYPE_CHECKING:
    from fastovms.parts.ray_serve.replica import HttpProxy, Message

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is missing: pip install -e '.[ray]'"
)
DEADLINE = 180.0

# The options and the child server of a replica.


def test_options_are_read() -> None:
    args = {"model": "m", "arguments": ["--cache-size", "1"], "environment": {"A": "b"}}
    assert replica_options(args) == ReplicaOptions("m", ("--cache-size", "1"), {"A": "b"})
    assert replica_options({}) == ReplicaOptions()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"modle": "m"}, "unknown field `modle`"),
        ({"model": 1}, r"Expected `str`, got `int` - at `\$.model`"),
        ({"arguments": "--cache-size 1"}, r"at `\$.arguments`"),
        ({"arguments": ["--port", "8000"]}, "`arguments` has --port"),
        ({"arguments": ["--listen=unix:/x"]}, "`arguments` has --listen"),
        ({"environment": {"A": 1}}, r"at `\$.environment"),
    ],
)
def test_invalid_options_are_refused_by_name(args: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replica_options(args)


@pytest.mark.parametrize(
    ("arguments", "num_cpus", "num_threads"),
    [
        ((), 4.0, 4),
        ((), 2.5, 2),
        ((), 0.5, 1),
        ((), 0.0, None),
        (("--plugin-config", "{}"), 4.0, None),
        (("--plugin_config={}",), 4.0, None),
    ],
)
def test_threads_follow_num_cpus_unless_the_operator_sets_properties(
    arguments: tuple[str, ...], num_cpus: float, num_threads: int | None
) -> None:
    found = ReplicaOptions("m", arguments).serve_arguments(num_cpus)
    added = found[1 + len(arguments) :]
    assert found[: 1 + len(arguments)] == ["m", *arguments]
    if num_threads is None:
        assert added == []
    else:
        properties = {"INFERENCE_NUM_THREADS": num_threads, "ENABLE_CPU_PINNING": False}
        assert (added[0], json.loads(added[1])) == ("--plugin-config", properties)


RUNNING = "fastovms_num_requests_running"
WAITING = "fastovms_num_requests_waiting"


def test_queues_are_summed_over_models() -> None:
    lines = [f'{RUNNING}{{model_name="a"}} 3.0', f'{RUNNING}{{model_name="b"}} 2.0']
    lines += [f'{WAITING}{{model_name="a"}} 7.0', "other 1.0", ""]
    assert queue_lengths("\n".join(lines)) == {RUNNING: 5.0, WAITING: 7.0}
    assert queue_lengths("") == {RUNNING: 0.0, WAITING: 0.0}


@pytest.mark.parametrize(
    ("metrics", "queued", "replicas"),
    [
        ({RUNNING: {"a": 6.0, "b": 2.0}, WAITING: {"a": 4.0, "b": 0.0}}, 0, 3.0),
        ({RUNNING: {"a": 6.0}}, 2, 2.0),
        ({}, 4, 1.0),
        (None, None, 0.0),
    ],
)
def test_replicas_follow_the_queues(
    metrics: dict[str, dict[str, float]] | None, queued: float | None, replicas: float
) -> None:
    context = SimpleNamespace(
        aggregated_metrics=metrics,
        total_queued_requests=queued,
        config=SimpleNamespace(target_ongoing_requests=4.0),
    )
    assert replicas_for_queues(context) == (replicas, {})


async def test_child_server_answers_until_it_is_stopped() -> None:
    arguments = ("--cache-size", "0.01", "--no-enable-store")
    server = await ChildServer.start(arguments, {"MAX_NUM_SEQS": "3"})
    assert await asyncio.to_thread(read, f"{server.url}/health") == "", "and status 200"
    await server.stop()
    assert await server.wait() == "has ended with code 0"


@pytest.mark.parametrize(
    ("arguments", "environment"), [(["--no-such-flag"], {}), ([], {"MAX_NUM_SEQS": "many"})]
)
async def test_child_server_that_cannot_start_is_an_error(
    arguments: list[str], environment: dict[str, str]
) -> None:
    with pytest.raises(BackendUnavailable, match="the server has ended with code 2 before it was"):
        await ChildServer.start(arguments, environment)


# The proxy of a replica, between a fake ASGI server and an HTTP server of the test.


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
DISCONNECT: dict[str, Any] = {"type": "http.disconnect"}


def body_part(body: bytes = b"", *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


class Exchange:
    """A request to the proxy.

    Attributes:
        sent: the messages that the proxy has sent to the ASGI server.
        incoming: the messages that the proxy receives, before it waits forever.
    """

    def __init__(self, **scope: object) -> None:
        self.scope = {"type": "http", "method": "GET", "path": "/", "headers": [], **scope}
        self.sent: list[Message] = []
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()

    async def run(self, proxy: HttpProxy, *, more: bool = False) -> None:
        self.incoming.put_nowait(body_part(more=more))
        await proxy(self.scope, self.incoming.get, self.send)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


@asynccontextmanager
async def proxy_to(answer: Answer) -> AsyncIterator[HttpProxy]:
    from fastovms.parts.ray_serve.replica import HttpProxy

    async with serving(answer) as port:
        proxy = HttpProxy(f"http://127.0.0.1:{port}")
        try:
            async with asyncio.timeout(DEADLINE):
                yield proxy
        finally:
            await proxy.close()


def answering(answer: bytes, heads: list[bytes] | None = None) -> Answer:
    async def read_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        writer.write(answer)

    return read_head


@needs_ray
@pytest.mark.parametrize(
    ("path", "root_path", "target"),
    [
        ("/v1/a%20b", "", "/v1/a%20b?x=%41&y"),
        ("/llm/v1/models", "/llm", "/v1/models?x=%41&y"),
        ("/llm", "/llm", "/?x=%41&y"),
    ],
)
async def test_proxy_forwards_a_head_without_prefix_and_connection_fields(
    path: str, root_path: str, target: str
) -> None:
    heads: list[bytes] = []
    headers = [
        (b"host", b"cluster:8000"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"te", b"trailers"),
        (b"authorization", b"Bearer key"),
        (b"x-two", b"1"),
        (b"x-two", b"2"),
    ]
    asked = Exchange(
        path=path,
        raw_path=path.encode(),
        root_path=root_path,
        query_string=b"x=%41&y",
        headers=headers,
    )
    async with proxy_to(answering(EMPTY, heads)) as proxy:
        await asked.run(proxy)
    first, *fields = heads[0].decode().rstrip().lower().split("\r\n")
    assert first == f"get {target} http/1.1"
    assert fields == ["host: cluster:8000", "authorization: bearer key", "x-two: 1", "x-two: 2"]


@needs_ray
async def test_proxy_returns_status_fields_and_body_unchanged() -> None:
    answer = (
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nDate: now\r\nX-Request-Id: abc\r\n"
        b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nContent-Encoding: gzip\r\n"
        b"Set-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 4\r\n\r\nbody"
    )
    asked = Exchange()
    async with proxy_to(answering(answer)) as proxy:
        await asked.run(proxy)
    assert asked.sent[0]["status"] == 429
    assert asked.sent[0]["headers"] == [
        (b"retry-after", b"3"),
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"content-length", b"4"),
    ]
    assert asked.body == b"body"


@needs_ray
@pytest.mark.parametrize("leaves", ["by a message", "by a cancelled task", "within its request"])
async def test_server_connection_closes_when_the_client_disconnects(leaves: str) -> None:
    has_begun, has_ended = asyncio.Event(), asyncio.Event()
    is_sending = leaves == "within its request"

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if not is_sending:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        has_begun.set()
        await reader.read()
        has_ended.set()

    asked = Exchange(method="POST", headers=[(b"content-length", b"7")] if is_sending else [])
    async with proxy_to(wait_for_end) as proxy:
        exchange = asyncio.ensure_future(asked.run(proxy, more=is_sending))
        await has_begun.wait()
        if leaves == "by a cancelled task":
            exchange.cancel()
            with pytest.raises(asyncio.CancelledError):
                await exchange
        else:
            asked.incoming.put_nowait(DISCONNECT)
            await exchange
        await has_ended.wait()


@needs_ray
async def test_proxy_reads_no_more_than_the_client_takes() -> None:
    num_written = 0
    is_stuck = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while True:
            writer.write(bytes(100_000))
            await writer.drain()
            num_written += 100_000

    async def never_send(message: Message) -> None:
        if message["type"] == "http.response.body":
            is_stuck.set()
            await asyncio.Event().wait()

    asked = Exchange()
    asked.send = never_send  # type: ignore[method-assign]
    async with proxy_to(flood) as proxy:
        exchange = asyncio.ensure_future(asked.run(proxy))
        await is_stuck.wait()
        before = -1
        while before != num_written:  # the buffers of the sockets fill
            before = num_written
            await asyncio.sleep(0.1)
        assert num_written < 30_000_000
        exchange.cancel()
        await asyncio.gather(exchange, return_exceptions=True)


@needs_ray
async def test_proxy_without_a_server_answers_503_in_the_format_of_openai() -> None:
    from fastovms.parts.ray_serve.replica import HttpProxy

    proxy, asked = HttpProxy("http://127.0.0.1:1"), Exchange()
    await asked.run(proxy)
    await proxy.close()
    assert asked.sent[0]["status"] == 503
    assert (b"retry-after", b"1") in asked.sent[0]["headers"]
    error = json.loads(asked.body)["error"]
    assert (error["type"], error["param"], error["code"]) == ("server_error", None, None)


@needs_ray
async def test_proxy_does_not_complete_a_truncated_answer() -> None:
    cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    asked = Exchange()
    async with proxy_to(answering(cut)) as proxy:
        with pytest.raises(OSError, match="the server ended during its response"):
            await asked.run(proxy)
    assert asked.sent[-1]["more_body"]


# Calls that Ray makes in its own processes.


@pytest.fixture(scope="session")
def ray_serve() -> None:
    """Imports Ray, whose own calls of deprecated functions must not fail the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("ray.serve")


@needs_ray
@pytest.mark.usefixtures("ray_serve")
async def test_unhealthy_server_fails_the_health_check_of_its_replica() -> None:
    from fastovms.parts.ray_serve.replica import HttpProxy, ServeReplica

    class NotAwaited(ServeReplica):
        def __del__(self) -> None:
            """Only Ray can await the other."""

    replica: Any = NotAwaited.__new__(NotAwaited)
    answer = b"HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\ngone"
    async with proxy_to(answering(answer)) as replica._proxy:
        with pytest.raises(BackendUnavailable, match="/health answers 503: gone"):
            await replica.check_health()
    replica._proxy = HttpProxy("http://127.0.0.1:1")
    with pytest.raises(BackendUnavailable, match="/health does not answer"):
        await replica.check_health()
    await replica._proxy.close()


@needs_ray
@pytest.mark.usefixtures("ray_serve")
def test_server_refuses_requests_before_ray_queues_them() -> None:
    from fastovms.parts.ray_serve.application import build

    limit = build({})._bound_deployment.max_ongoing_requests
    engine = EngineConfig()
    assert limit > engine.max_num_seqs + engine.max_num_queued_requests


NAMES = ("a", "b", "c", "d")


async def choose(session_id: str, names: tuple[str, ...] = NAMES) -> list[list[str]]:
    """Returns the groups of replicas, by name, in the ranking of a new router for a session."""
    from ray.serve._private.common import DeploymentHandleSource
    from ray.serve.config import DeploymentID, ReplicaID

    from fastovms.parts.ray_serve.application import AffinityRouter

    deployment = DeploymentID(name="fastovms")
    router = AffinityRouter(deployment, DeploymentHandleSource.UNKNOWN)
    router.update_replicas(
        [
            SimpleNamespace(replica_id=ReplicaID(name, deployment), max_ongoing_requests=9)
            for name in names
        ]
    )
    metadata = SimpleNamespace(session_id=session_id, internal_request_id="1")
    request: Any = SimpleNamespace(metadata=metadata, routing_context=SimpleNamespace())
    groups = await router.choose_replicas(router._replicas_list, request)
    return [[replica.replica_id.unique_id for replica in group] for group in groups]


@needs_ray
@pytest.mark.usefixtures("ray_serve")
async def test_router_keeps_a_session_at_its_replica_while_that_exists() -> None:
    for number in range(50):
        before = await choose(f"session {number}")
        assert before == await choose(f"session {number}")
        assert len({name for [name] in before}) == len(before) == 3, "two others for overload"
        [[home], *_], [[later], *_] = before, await choose(f"session {number}", NAMES[:3])
        assert home in ("d", later)
    assert await choose("session", ("a",)) == [["a"]]


@needs_ray
@pytest.mark.usefixtures("ray_serve")
async def test_router_offers_two_random_replicas_to_a_request_without_a_session() -> None:
    pairs = [pair for _ in range(50) for pair in await choose("")]
    assert {len(set(pair)) for pair in pairs} == {2}
    assert {name for pair in pairs for name in pair} == set(NAMES)
    assert await choose("", ("a",)) == [["a"]]


# The application of `deploy/ray` on a cluster.


PROMPT = "Once upon a time"
NUM_SAMPLES = 8
NUM_TOKENS = 250
NUM_STREAMS = 8
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        text: str = answer.read().decode()
        return text


def small_config(port: int, arguments: list[str]) -> str:
    """Returns the YAML of `deploy/ray` for two small replicas that are scaled within seconds."""
    config = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text())
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    config["proxy_location"] = "HeadOnly"
    [application] = config["applications"]
    application["args"]["arguments"] += arguments
    [deployment] = application["deployments"]
    deployment["ray_actor_options"]["num_cpus"] = 0.5
    deployment["autoscaling_config"] |= {
        "max_replicas": 2,
        "target_ongoing_requests": 4,
        "upscale_delay_s": 0,
        "look_back_period_s": 11,
        "aggregation_function": "max",
    }
    return yaml.safe_dump(config)


@dataclass(frozen=True)
class Server:
    """A replica's server.

    Attributes:
        port: its own port behind Ray's proxy.
    """

    pid: int
    port: int

    def metric(self, name: str) -> float:
        text = read(f"http://127.0.0.1:{self.port}/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        )

    def num_tokens(self) -> float:
        return self.metric("fastovms_generation_tokens_total")


class RayCluster:
    """`serve run` in its own process group."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.name = f"ray-{port}"
        self.output: list[str] = []
        file = folder / "serve.yaml"
        file.write_text(small_config(port, ["--cache-size", "0.1", "--model-name", self.name]))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "ray.serve.scripts", "run", str(file)],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self.output.extend, args=(self.process.stdout,))
        self._reader.start()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, "".join(self.output)
        try:
            read(f"{self.url}/health")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(DEADLINE)
        finally:  # Ray's own processes are in the group, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def servers(self) -> list[Server]:
        """Returns the servers that listen."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_text()
            except OSError:
                continue
            pid = int(path.parent.name)
            if "\0serve\0" in command and self.name in command and (port := listening_port(pid)):
                found.append(Server(pid, port))
        return found

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"max_retries": 0, "timeout": DEADLINE, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", **options)

    def stream(self, client: openai.OpenAI) -> openai.Stream[Completion]:
        """Starts a stream that takes a second or more."""
        return client.completions.create(
            model=self.name,
            prompt=PROMPT,
            max_tokens=NUM_TOKENS,
            n=NUM_SAMPLES,
            stream=True,
            extra_body={"ignore_eos": True},
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    cluster = RayCluster(tmp_path_factory.mktemp("ray"))
    try:
        wait_until(cluster.is_ready)
        yield cluster
    finally:
        cluster.stop()
    assert cluster.servers() == [], "servers outlive the cluster"


@needs_ray
def test_streamed_completion_equals_the_whole_one(cluster: RayCluster) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    with cluster.client() as client:
        whole = client.completions.create(model=cluster.name, **asked)
        chunks = list(client.completions.create(model=cluster.name, stream=True, **asked))
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="another", prompt=PROMPT)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert len(chunks) == 20


@needs_ray
def test_large_body_is_refused_by_the_server_not_by_ray(cluster: RayCluster) -> None:
    body = b'{"model": "%s", "prompt": "%s"}' % (cluster.name.encode(), b"x" * 60_000_000)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{cluster.url}/v1/completions", body, timeout=DEADLINE)
    with refused.value as answer:
        assert answer.code == 400
        codes = rb'"code":"(context_length_exceeded|string_above_max_length)'
        assert re.search(codes, answer.read())


@needs_ray
def test_disconnected_client_ends_its_request(cluster: RayCluster) -> None:
    servers = cluster.servers()
    before = sum(server.num_tokens() for server in servers)
    with cluster.client() as client, cluster.stream(client) as chunks:
        next(chunks)
    wait_until(lambda: not any(server.metric(RUNNING) for server in servers))
    computed = sum(server.num_tokens() for server in servers) - before
    assert 0 < computed < NUM_SAMPLES * NUM_TOKENS


@needs_ray
def test_second_replica_starts_and_a_killed_one_is_replaced(cluster: RayCluster) -> None:
    def read_stream(session: int) -> int:
        """Returns the number of complete samples; -1 if the stream ended early."""
        with cluster.client(default_headers={"x-session-id": str(session)}) as client:
            try:
                chunks = list(cluster.stream(client))
            except (openai.APIError, httpx2.TransportError):
                return -1
            return sum(chunk.choices[0].finish_reason == "length" for chunk in chunks)

    def have_two_answered() -> bool:
        servers = cluster.servers()
        return len(servers) == 2 and all(server.num_tokens() for server in servers)

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        # The queue of one replica exceeds `target_ongoing_requests` until there are two.
        while not have_two_answered():
            assert set(pool.map(read_stream, range(NUM_STREAMS))) == {NUM_SAMPLES}

        streams = [pool.submit(read_stream, session) for session in range(NUM_STREAMS)]
        servers = cluster.servers()
        wait_until(lambda: all(server.metric(RUNNING) for server in servers))
        victim = servers[0]
        os.kill(victim.pid, signal.SIGKILL)
        results = [each.result() for each in streams]
    assert set(results) == {-1, NUM_SAMPLES}, "streams of the other replica were cut too"
    with cluster.client(max_retries=3) as client:
        for _ in range(NUM_STREAMS):
            client.completions.create(model=cluster.name, prompt=PROMPT, max_tokens=2)
    wait_until(lambda: len(cluster.servers()) == 2)
    assert victim not in cluster.servers()
