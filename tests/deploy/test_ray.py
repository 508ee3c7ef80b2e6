"""The application of `deploy/ray` on a real cluster of two nodes, which runs as a process of its
own: nothing of Ray is imported here."""

from __future__ import annotations

import contextlib
import importlib.util
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai
import pytest
from openai.types import Completion
from prometheus_client.parser import text_string_to_metric_families

from bench.common.process import listening_port
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is missing: pip install -e '.[ray]'",
)

DEADLINE = 180.0
PROMPT = "Once upon a time"
NUM_SAMPLES = 8
NUM_TOKENS = 250
NUM_STREAMS = 8


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        text: str = answer.read().decode()
        return text


@dataclass(frozen=True)
class Server:
    """A replica's server.

    Attributes:
        port: its own, behind Ray's proxy.
    """

    pid: int
    port: int

    def num_running(self) -> float:
        return self._metric("fastovms_num_requests_running")

    def num_tokens(self) -> float:
        return self._metric("fastovms_generation_tokens_total")

    def _metric(self, name: str) -> float:
        text = read(f"http://127.0.0.1:{self.port}/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        )


class RayCluster:
    """Two nodes of one processor each, with room for a replica on each."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.name = f"ray-{port}"
        self.output: list[str] = []
        server = ["--cache-size", "0.1", "--model-name", self.name]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.deploy.ray_cluster", str(port), *server],
            cwd=ROOT,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read_output)
        self._reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        self.output.extend(self.process.stdout)

    def wait_until_ready(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, "".join(self.output)
            try:
                read(f"{self.url}/health")
            except (urllib.error.URLError, ConnectionError):
                return False
            return True

        wait_until(answers)

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(DEADLINE)
        finally:  # Ray's own processes are in the group, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join()
        self.process.stdout.close()

    def servers(self) -> list[Server]:
        """Those that have begun to listen, on either node."""
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

    def client(self, max_retries: int = 0) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=max_retries, timeout=DEADLINE
        )

    def has_two_replicas(self) -> bool:
        """Whether two have answered."""
        servers = self.servers()
        return len(servers) == 2 and all(server.num_tokens() for server in servers)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.stop()
    assert cluster.servers() == [], "servers outlive the cluster"


def stream(client: openai.OpenAI, name: str) -> openai.Stream[Completion]:
    """A stream that takes a second or more."""
    return client.completions.create(
        model=name,
        prompt=PROMPT,
        max_tokens=NUM_TOKENS,
        n=NUM_SAMPLES,
        stream=True,
        extra_body={"ignore_eos": True},
    )


def test_streamed_completion_equals_the_whole_one(cluster: RayCluster) -> None:
    with cluster.client() as client:
        whole = client.completions.create(
            model=cluster.name, prompt=PROMPT, max_tokens=20, temperature=0
        )
        chunks = list(
            client.completions.create(
                model=cluster.name, prompt=PROMPT, max_tokens=20, temperature=0, stream=True
            )
        )
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="another", prompt=PROMPT)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert len(chunks) == 20


def test_large_body_is_refused_by_the_server_not_by_ray(cluster: RayCluster) -> None:
    body = b'{"model": "%s", "prompt": "%s"}' % (cluster.name.encode(), b"x" * 60_000_000)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{cluster.url}/v1/completions", body, timeout=DEADLINE)
    with refused.value as answer:
        assert answer.code == 400
        assert re.search(
            rb'"code":"(context_length_exceeded|string_above_max_length)', answer.read()
        )


def test_a_client_that_leaves_ends_its_request(cluster: RayCluster) -> None:
    servers = cluster.servers()
    before = sum(server.num_tokens() for server in servers)
    with cluster.client() as client, stream(client, cluster.name) as chunks:
        next(chunks)
    wait_until(lambda: not any(server.num_running() for server in servers))
    computed = sum(server.num_tokens() for server in servers) - before
    assert 0 < computed < NUM_SAMPLES * NUM_TOKENS


def test_a_second_replica_starts_and_a_killed_one_is_replaced(cluster: RayCluster) -> None:
    def read_stream(session: int) -> int:
        """Returns how many samples came to their ends, -1 if the stream broke off."""
        with cluster.client() as client:
            own = client.with_options(default_headers={"x-session-id": str(session)})
            try:
                chunks = list(stream(own, cluster.name))
            except (openai.APIError, httpx2.TransportError):
                return -1
            return sum(chunk.choices[0].finish_reason == "length" for chunk in chunks)

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        # The queue of one replica grows beyond `target_ongoing_requests` until there are two.
        while not cluster.has_two_replicas():
            assert set(pool.map(read_stream, range(NUM_STREAMS))) == {NUM_SAMPLES}

        streams = [pool.submit(read_stream, session) for session in range(NUM_STREAMS)]
        servers = cluster.servers()
        wait_until(lambda: all(server.num_running() for server in servers))
        victim = servers[0]
        os.kill(victim.pid, signal.SIGKILL)
        results = [each.result() for each in streams]
    assert set(results) == {-1, NUM_SAMPLES}, "streams of the other replica were cut too"
    with cluster.client(max_retries=3) as client:
        for _ in range(NUM_STREAMS):
            client.completions.create(model=cluster.name, prompt=PROMPT, max_tokens=2)
    wait_until(lambda: len(cluster.servers()) == 2)
    assert victim not in cluster.servers()
