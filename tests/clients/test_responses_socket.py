"""OpenAI's client for Python against the real server: the Responses API over WebSocket."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import websockets.sync.client
from openai.resources.responses.responses import ResponsesConnection

from tests.real_server import NAME, Server, is_idle, server, start_server, stop_server

__all__ = ["server"]

GIVEN = {"model": NAME, "temperature": 0, "store": False}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client("/v1") as client:
        yield client


@pytest.fixture
def connection(client: openai.OpenAI) -> Iterator[ResponsesConnection]:
    with client.responses.connect() as connection:
        yield connection


def events(connection: ResponsesConnection) -> list[Any]:
    """The events of a response, to its last one."""
    found: list[Any] = []
    while not found or found[-1].type not in ENDS:
        found.append(connection.recv())
    return found


def comparable(found: list[Any]) -> list[tuple[str, str]]:
    """The types and texts of events, with deltas in a row joined: how many there are is chance."""
    joined: list[tuple[str, str]] = []
    for event in found:
        text = str(getattr(event, "delta", getattr(event, "text", "")))
        if joined and event.type == joined[-1][0]:
            text = joined.pop()[1] + text
        joined.append((event.type, text))
    return joined


def create(connection: ResponsesConnection, **members: object) -> None:
    """Creates a response with fields that OpenAI does not have."""
    connection.send_raw(json.dumps({"type": "response.create", **GIVEN, **members}))


def test_the_events_are_those_of_the_stream(client, connection):
    asked = {**GIVEN, "input": "Tell me a story", "max_output_tokens": 12}
    streamed = list(client.responses.create(**asked, stream=True))
    connection.response.create(**asked)
    found = events(connection)
    assert comparable(found) == comparable(streamed)
    numbers = [event.sequence_number for event in found]
    assert numbers == list(range(len(found)))
    assert found[-1].response.output_text == streamed[-1].response.output_text


def test_a_response_that_is_not_stored_is_continued(client, connection):
    connection.response.create(**GIVEN, input="Hi", max_output_tokens=4)
    first = events(connection)[-1].response
    connection.response.create(
        **GIVEN, input="Go on", previous_response_id=first.id, max_output_tokens=4
    )
    second = events(connection)[-1].response
    assert second.previous_response_id == first.id
    items = [
        {"role": "user", "content": "Hi"},
        *(item.to_dict() for item in first.output),
        {"role": "user", "content": "Go on"},
    ]
    whole = client.responses.create(**GIVEN, input=items, max_output_tokens=4)
    assert second.output_text == whole.output_text
    assert second.usage.input_tokens == whole.usage.input_tokens
    # Only the connection that made it knows it.
    with client.responses.connect() as other:
        other.response.create(**GIVEN, input="Go on", previous_response_id=first.id)
        [event] = events(other)
    assert (event.status, event.error.code) == (404, "previous_response_not_found")


def test_messages_wait_for_one_another_and_keep_their_stream_id(connection):
    for name in ("a", "b", "c"):
        connection.response.create(**GIVEN, input=name, max_output_tokens=3, stream_id=name)
    for name in ("a", "b", "c"):
        assert {event.stream_id for event in events(connection)} == {name}


def test_state_is_prepared_without_output(connection):
    connection.response.create(**GIVEN, input="Hi", generate=False)
    found = events(connection)
    assert [event.type for event in found] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip
    prepared = found[-1].response
    assert (prepared.output, prepared.usage.output_tokens) == ([], 0)
    connection.response.create(
        **GIVEN, input="Go on", previous_response_id=prepared.id, max_output_tokens=3
    )
    assert events(connection)[-1].response.usage.input_tokens > prepared.usage.input_tokens


@pytest.mark.parametrize(
    ("message", "status", "words"),
    [
        ("nonsense", 400, "not JSON"),
        ("[]", 400, "type must be"),
        ('{"type": "response.steer"}', 400, "type must be"),
        ('{"type": "response.cancel"}', 400, "no such response is running"),
        ('{"type": "response.create", "model": "nope", "input": "a"}', 404, "does not exist"),
        ('{"type": "response.create", "input": 5}', 400, "input"),
        ('{"type": "response.create", "input": "a", "background": true}', 400, "background"),
        ('{"type": "response.create", "input": "a", "stream_id": 5}', 400, "stream_id"),
    ],
)
def test_errors_are_events_and_the_connection_stays(connection, message, status, words):
    connection.send_raw(message)
    event = connection.recv()
    assert (event.type, event.status) == ("error", status)
    assert words in event.error.message
    connection.response.create(**GIVEN, input="Hi", max_output_tokens=2)
    assert events(connection)[-1].type == "response.incomplete"


def test_more_messages_than_may_wait(connection):
    create(connection, input="Hi", max_output_tokens=1900, ignore_eos=True)
    for _ in range(8):
        connection.recv()
    for _ in range(18):
        create(connection, input="Hi", max_output_tokens=2)
    connection.send_raw('{"type": "response.cancel"}')
    ends = [events(connection)[-1] for _ in range(19)]
    assert sorted(event.status for event in ends if event.type == "error") == [429, 429]
    assert [event.response.status for event in ends if event.type != "error"] == [
        "cancelled", *["incomplete"] * 16,
    ]  # fmt: skip


def test_a_response_is_cancelled(server, connection):
    create(connection, input="Hi", max_output_tokens=1900, ignore_eos=True)
    for _ in range(8):
        connection.recv()
    connection.send_raw('{"type": "response.cancel"}')
    found = events(connection)
    assert found[-1].response.status == "cancelled"
    server.wait_until(is_idle)
    connection.response.create(**GIVEN, input="Hi", max_output_tokens=2)
    assert events(connection)[-1].response.status == "incomplete"


def test_a_response_is_cancelled_while_its_history_is_compacted(connection):
    """Nothing has been told of it then."""
    said = {"role": "assistant", "content": "Once upon a time. " * 20}
    compaction = [{"type": "compaction", "compact_threshold": 5}]
    create(
        connection, input=[said, {"role": "user", "content": "Hi"}], context_management=compaction
    )
    time.sleep(0.05)
    connection.send_raw('{"type": "response.cancel"}')
    last = events(connection)[-1]
    assert last.type == "error" or last.response.status == "cancelled"
    connection.response.create(**GIVEN, input="Hi", max_output_tokens=2)
    assert events(connection)[-1].response.status == "incomplete"


def test_a_client_that_disconnects_ends_its_response(server, client):
    with client.responses.connect() as connection:
        create(connection, input="Hi", max_output_tokens=1900, ignore_eos=True)
        connection.recv()
    server.wait_until(is_idle)


def test_keys_and_origins_are_checked():
    server = start_server("--api-key", "alpha", "--root-path", "/llm")
    try:
        url = server.url.replace("http", "ws") + "/llm/v1/responses"
        connect = websockets.sync.client.connect
        connect(url, additional_headers={"Authorization": "Bearer alpha"}).close()
        for headers in ({}, {"Authorization": "Bearer beta"}):
            with pytest.raises(websockets.InvalidStatus) as caught:
                connect(url, additional_headers=headers)
            assert caught.value.response.status_code == 401
    finally:
        stop_server(server)


def test_a_page_of_another_site_is_refused(server):
    url = server.url.replace("http", "ws") + "/v1/responses"
    with pytest.raises(websockets.InvalidStatus) as caught:
        websockets.sync.client.connect(url, origin="http://evil.example")
    assert caught.value.response.status_code == 403


@pytest.mark.parametrize(
    ("flags", "code"),
    [(("--websocket-idle-timeout", "1"), 1001), (("--websocket-max-age", "1"), 1012)],
)
def test_limits_of_time(flags, code):
    server = start_server(*flags)
    try:
        url = server.url.replace("http", "ws") + "/v1/responses"
        with websockets.sync.client.connect(url) as connection:
            if code == 1012:
                told = json.loads(connection.recv())
                assert told["error"]["code"] == "websocket_connection_limit_reached"
            with pytest.raises(websockets.ConnectionClosed):
                connection.recv(timeout=10)
            assert connection.close_code == code
    finally:
        stop_server(server)
