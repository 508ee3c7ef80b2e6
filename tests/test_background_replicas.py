"""Three real servers that share a state in PostgreSQL: what one runs, the others follow and cancel,
and they go on with it when it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from tests.postgres_server import PostgresServer
from tests.real_server import NAME, Server, start_server, stop_server


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        postgres = PostgresServer()
        stack.callback(postgres.close)
        with ThreadPoolExecutor() as pool:
            flags = ("--state-url", postgres.url(), "--no-enable-prompt-lookup")
            servers = list(pool.map(lambda _: start_server(*flags), range(3)))
        for server in servers:
            stack.callback(stop_server, server)
        yield servers


@pytest.fixture
def clients(servers: list[Server]) -> Iterator[list[openai.OpenAI]]:
    with ExitStack() as stack:
        yield [stack.enter_context(server.client("/v1")) for server in servers]


NUM_TOKENS = 300
"""How long a response is that another server goes on with."""

NUM_OTHERS = 6
"""How many responses run beside that of a test, so that it takes some seconds on any machine."""


def start(client: openai.OpenAI) -> str:
    """Starts a response that runs for some seconds, and returns its id."""
    id, *_ = [start_one(client) for _ in range(1 + NUM_OTHERS)]
    return id


def start_one(client: openai.OpenAI, **fields: Any) -> str:
    response = client.responses.create(
        model=NAME,
        input="Tell me a story.",
        background=True,
        temperature=0,
        extra_body={"ignore_eos": True},
        **fields,
    )
    assert response.status == "queued"
    return response.id


def wait_for_text(client: openai.OpenAI, id: str) -> None:
    for event in client.responses.retrieve(id, stream=True):
        if event.sequence_number >= 20:
            return


def check_numbers(events: list[Any], first: int) -> None:
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(first, first + len(events)))


@pytest.mark.nightly
def test_started_on_one_followed_on_another_cancelled_on_a_third(clients):
    a, b, c = clients
    id = start(a)
    events = []
    for event in b.responses.retrieve(id, stream=True, starting_after=9):
        events.append(event)
        if len(events) == 10:
            assert c.responses.retrieve(id).status == "in_progress"
            assert c.responses.cancel(id).status == "cancelled"
    check_numbers(events, 10)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.status == "cancelled"
    for client in clients:
        assert client.responses.retrieve(id) == events[-1].response
        again = list(client.responses.retrieve(id, stream=True, starting_after=9))
        assert again == events


@pytest.mark.nightly
def test_others_go_on_when_a_server_ends(servers, clients):
    """It is last but one: servers end here."""
    c, a = servers[2], clients[0]
    id = start_one(clients[2], max_output_tokens=NUM_TOKENS)
    wait_for_text(a, id)
    with ThreadPoolExecutor() as pool:
        follower = pool.submit(lambda: list(a.responses.retrieve(id, stream=True)))
        c.process.terminate()
        c.wait_until_closed()  # two signals at once would be one
        c.process.terminate()
        events = follower.result(60)
    check_numbers(events, 0)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.usage.output_tokens == NUM_TOKENS


def test_another_goes_on_when_a_server_is_killed(servers, clients):
    a, b = clients[:2]
    id = start_one(a, max_output_tokens=NUM_TOKENS)
    wait_for_text(b, id)
    events = []
    for event in b.responses.retrieve(id, stream=True, starting_after=9):
        events.append(event)
        if len(events) == 1:
            servers[0].process.kill()
    check_numbers(events, 10)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response == b.responses.retrieve(id)
    assert events[-1].response.usage.output_tokens == NUM_TOKENS
