"""Real servers behind the real Envoy."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import openai
import pytest

from deploy.envoy.render import render
from tests.deploy.envoy.process import Envoy, needs_envoy, running_envoy
from tests.real_server import NAME, Server, start_server, stop_server

pytestmark = [needs_envoy, pytest.mark.nightly]

FLAGS = ("--state-dir", ":memory:", "--drain-delay", "3", "--drain-timeout", "10")


class Served(NamedTuple):
    envoy: Envoy
    servers: list[Server]

    def client(self) -> openai.OpenAI:
        url = f"http://127.0.0.1:{self.envoy.port('clients')}/v1"
        return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two servers, each with its own state: a response is known to the server that created it."""
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        servers = list(threads.map(lambda _: start_server(*FLAGS), range(2)))
        for server in servers:
            stack.callback(stop_server, server)
        bootstrap = render(
            tmp_path_factory.mktemp("envoy"),
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            replicas=[server.url.removeprefix("http://") for server in servers],
            plain=True,
        )
        envoy = stack.enter_context(running_envoy(bootstrap))
        for cluster in ("replicas", "replicas_by_key"):
            envoy.wait_for_stat(f"cluster.{cluster}.membership_healthy", 2)
        yield Served(envoy, servers)


def test_the_turns_of_a_chain_meet_at_one_replica(served):
    keys = set()
    with served.client() as client:
        for number in range(6):
            text = f"Story {number}"
            ids = []
            for _ in range(3):
                response = client.responses.create(
                    model=NAME,
                    input=text,
                    max_output_tokens=16,
                    previous_response_id=ids[-1] if ids else openai.omit,
                )
                ids.append(response.id)
            assert client.responses.retrieve(ids[0]).id == ids[0]
            assert len({id[5:13] for id in ids}) == 1
            keys.add(ids[0][5:13])
            client.responses.delete(ids[0])
    assert len(keys) == 6
    served_by = [server.metrics()["request_success_total"] for server in served.servers]
    assert min(served_by) > 0


def test_a_server_that_drains_loses_no_request(served):
    failures, answered, stop = [], [], threading.Event()

    def ask(number: int) -> None:
        with served.client() as client:
            while not stop.is_set():
                try:
                    answer = client.completions.create(
                        model=NAME, prompt=f"Once {number}", max_tokens=8
                    )
                    answered.append(answer.choices[0].finish_reason)
                except openai.OpenAIError as error:
                    failures.append(error)

    leaving = served.servers[0]
    with ThreadPoolExecutor() as threads:
        for number in range(4):
            threads.submit(ask, number)
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.process.wait(60) == 0
        before = len(answered)
        while len(answered) < before + 20:
            assert not failures
        stop.set()
    assert not failures
