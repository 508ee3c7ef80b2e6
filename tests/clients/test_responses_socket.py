"""Tests of OpenAI's client for Python with the real server: the Responses API over WebSocket."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import openai
import pytest
import websockets.sync.client
from openai.resources.responses.responses import ResponsesConnection

from tests.real_server import DEADLINE, NAME, Server, is_idle, server, start_server, stop_server

__all__ = ["server"]

GIVEN = {"model": NAME, "temperature": 0, "store": False}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


PATIENT: Final[Any] = {"open_timeout": DEADLINE}
"""Options of connections: a busy server needs more time to open one than the client's 10 s."""


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client("/v1") as client:
        yield client


@pytest.fixture
def connection(client: openai.OpenAI) -> Iterator[ResponsesConnection]:
    with client.responses.connect(websocket_connection_options=PATIENT) as connection:
        yield connection


@pytest.fixture(scope="module")
def limited() -> Iterator[Server]:
    """A server whose bodies have at most 1 MiB."""
    server = start_server("--max-body", "1M")
    yield server
    stop_server(server)


def events(connection: ResponsesConnection) -> list[Any]:
    """Returns the events of a response up to its last one."""
    return events_to(connection, *ENDS)


def events_to(connection: ResponsesConnection, *kinds: str) -> list[Any]:
    found = [connection.recv()]
    while found[-1].type not in kinds:
        found.append(connection.recv())
    return found


def comparable(found: list[Any]) -> list[tuple[str, str]]:
    """Returns the types and texts of events with successive deltas joined, because their number
    varies."""
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


def test_socket_events_are_those_of_the_http_stream(client, connection):
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
    # Only the connection that created it can refer to it.
    with client.responses.connect(websocket_connection_options=PATIENT) as other:
        other.response.create(**GIVEN, input="Go on", previous_response_id=first.id)
        [event] = events(other)
    assert (event.status, event.error.code) == (404, "previous_response_not_found")


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
        ("nonsense", 400, "not valid JSON"),
        ("[]", 400, "must be a JSON object"),
        ('{"type": "response.steer"}', 400, "type must be"),
        ('{"type": "response.cancel"}', 400, "no such response is running"),
        ('{"type": "response.create", "model": "nope", "input": "a"}', 404, "does not exist"),
        ('{"type": "response.create", "input": 5}', 400, "input"),
        ('{"type": "response.create", "input": "a", "background": true}', 400, "background"),
        ('{"type": "response.create", "input": "a", "stream_id": 5}', 400, "stream_id"),
        (f'{{"type": "response.create", "stream_id": "{"x" * 257}"}}', 400, "stream_id"),
    ],
)
def test_errors_are_events_and_the_connection_stays(connection, message, status, words):
    connection.send_raw(message)
    event = connection.recv()
    assert (event.type, event.status) == ("error", status)
    assert words in event.error.message
    connection.response.create(**GIVEN, input="Hi", max_output_tokens=2)
    assert events(connection)[-1].type == "response.incomplete"


def _nested(levels: int) -> str:
    return "[" * levels + "]" * levels


LARGE = '"user": "' + "x" * 70_000 + '"'
"""A member that makes a message large enough to be decoded in a thread."""

HOSTILE = {
    "arrays nested 253 deep": f'"zzz": {_nested(253)}',
    "arrays nested 1,000 deep": f'"zzz": {_nested(1000)}',
    "arrays nested 100,000 deep": f'"zzz": {_nested(100_000)}',
    "arrays that do not end": '"zzz": ' + "[" * 2000,
    "500,001 values": f'"zzz": [{"1," * 500_001}1]',
    "a number of 400 digits": f'"temperature": {"9" * 400}',
    "a million numbers of 400 digits": f'"zzz": [{",".join(["9" * 400] * 2000)}]',
    "an exponent that no float has": '"temperature": 1e999',
    "NaN": '"temperature": NaN',
    "a lone surrogate": '"user": "\\ud800"',
    "a control character": '"user": "\u0001"',
    "text after the end": '"user": "a"} {',
    **{
        f"{name} of another type: {value[:10]}": f'"{name}": {value}'
        for name in (
            "stream_id", "generate", "prompt_cache_options", "previous_response_id", "input",
            "stream", "background", "store", "instructions", "tools", "model",
        )
        for value in ("5", "[[]]", '{"a": {"b": []}}', "-0.5e3", _nested(90))
        if (name, value) != ("prompt_cache_options", '{"a": {"b": []}}')
    },
    "an unknown earlier response": '"previous_response_id": "resp_1"',
    "an earlier response of a bad id": f'"previous_response_id": "{"x" * 300}"',
    "an input of another type, twice": '"input": 5, "input": [5]',
}  # fmt: skip
ONLY_HERE = ("stream_id", "generate")
"""Members that `POST /responses` ignores as unknown."""


@pytest.mark.parametrize("size", ["small", "large"])
def test_invalid_message_has_the_error_of_http(server, connection, size):
    """For any fault of a message."""
    for name, member in HOSTILE.items():
        rest = f"{member}, {LARGE}" if size == "large" else member
        body = f'{{"type": "response.create", "max_output_tokens": 1, "input": "Hi", {rest}}}'
        connection.send_raw(body)
        event = events(connection)[-1]
        assert event.type == "error", name
        if name.startswith(ONLY_HERE):
            assert (event.status, event.error.param) == (400, name.split()[0]), name
            continue
        refused = server.send("POST", "/v1/responses", body.encode())
        assert (event.status, event.error.to_dict()) == (refused.status, refused.json["error"]), (
            name
        )
    connection.response.create(**GIVEN, input="Hi", max_output_tokens=2)
    assert events(connection)[-1].type == "response.incomplete"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [(b"a", 400, 1003), ("x" * (2 * 1024 * 1024), 413, 1009)],
    ids=["binary", "too large"],
)
def test_messages_that_end_the_connection_are_answered(limited, data, status, code):
    with websockets.sync.client.connect(
        f"{limited.url.replace('http', 'ws')}/v1/responses", **PATIENT
    ) as one:
        with suppress(websockets.ConnectionClosed):
            one.send(data)
        event = json.loads(one.recv(timeout=30))
        assert (event["type"], event["status"]) == ("error", status)
        with pytest.raises(websockets.ConnectionClosed):
            one.recv(timeout=30)
        assert one.close_code == code


def test_waiting_messages_are_bounded_in_bytes(limited):
    with (
        limited.client("/v1") as client,
        client.responses.connect(websocket_connection_options=PATIENT) as connection,
    ):
        create(connection, input="Hi", max_output_tokens=1900, ignore_eos=True)
        connection.recv()
        for name in ("a", "b", "c"):
            create(connection, input="Hi", user="x" * 400_000, stream_id=name, max_output_tokens=1)
        refused = events_to(connection, "error")[-1]
        assert (refused.status, refused.stream_id) == (429, None)
        assert "wait on this connection" in refused.error.message
        limited.wait_until(lambda metrics: metrics["http_buffered_body_bytes"] > 800_000)
        connection.send_raw('{"type": "response.cancel"}')
        ends = [events_to(connection, "response.incomplete")[-1] for _ in range(3)]
        assert [end.stream_id for end in ends] == [None, "a", "b"]
        limited.wait_until(lambda metrics: metrics["http_buffered_body_bytes"] < 10_000)
    limited.wait_until(lambda metrics: metrics["http_buffered_body_bytes"] == 0)


def test_memory_of_unstored_responses_is_counted_and_bounded(limited):
    """A chain may have as many bytes as a request body, which would contain it otherwise."""
    with (
        limited.client("/v1") as client,
        client.responses.connect(websocket_connection_options=PATIENT) as connection,
    ):
        previous, text = None, "x" * 300_000
        for turn in range(5):
            create(
                connection, previous_response_id=previous, max_output_tokens=1,
                input=[{"type": "reasoning", "summary": [], "encrypted_content": text}],
                truncation="auto",
            )  # fmt: skip
            last = events(connection)[-1]
            if last.type == "error":
                assert last.error.code == "previous_response_not_found"
                assert turn == 4
                break
            previous = last.response.id
        else:
            pytest.fail("the chain has no bound")
        limited.wait_until(lambda metrics: metrics["http_buffered_body_bytes"] < 2**20)
    limited.wait_until(lambda metrics: metrics["http_buffered_body_bytes"] == 0)


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_cancelled_response_is_stored_and_can_be_continued(server, prefix):
    with (
        server.client(prefix) as client,
        client.responses.connect(websocket_connection_options=PATIENT) as connection,
    ):
        create(connection, input="Hi", max_output_tokens=1900, ignore_eos=True, store=True)
        created = connection.recv().response
        for _ in range(8):
            connection.recv()
        connection.send_raw(json.dumps({"type": "response.cancel", "response_id": created.id}))
        last = events(connection)[-1]
        assert (last.response.status, last.response.store) == ("cancelled", True)
        kept = client.responses.retrieve(created.id)
        assert (kept.status, kept.output_text) == ("cancelled", last.response.output_text)
        assert kept.output_text
        server.wait_until(is_idle)
        connection.response.create(
            model=NAME, input="Go on", previous_response_id=created.id, max_output_tokens=2
        )
        assert events(connection)[-1].response.status == "incomplete"


def test_an_unstored_response_continues_a_stored_one(client, connection):
    """It is continued with its whole history, also by a stored response."""
    asked = {"model": NAME, "temperature": 0, "max_output_tokens": 3}
    first = client.responses.create(**asked, input="My name is Alice.")
    ids, inputs = [first.id], [first.usage.input_tokens]
    for store in (False, False, True):
        connection.response.create(**asked, input="And?", previous_response_id=ids[-1], store=store)
        last = events(connection)[-1].response
        assert last.previous_response_id == ids[-1]
        ids.append(last.id)
        inputs.append(last.usage.input_tokens)
    again = client.responses.create(**asked, input="And?", previous_response_id=ids[-1])
    inputs.append(again.usage.input_tokens)
    grown = [after - before for before, after in itertools.pairwise(inputs)]
    assert min(grown) > 0
    assert len(set(grown[1:])) == 1


def test_messages_beyond_the_queue_are_refused_with_429(connection):
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


def test_a_response_is_cancelled_while_its_history_is_compacted(connection):
    """Before its first event."""
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
    with client.responses.connect(websocket_connection_options=PATIENT) as connection:
        create(connection, input="Hi", max_output_tokens=1900, ignore_eos=True)
        connection.recv()
    server.wait_until(is_idle)


def test_connection_without_a_valid_key_is_refused_with_401():
    server = start_server("--api-key", "alpha", "--root-path", "/llm")
    try:
        url = server.url.replace("http", "ws") + "/llm/v1/responses"
        connect = websockets.sync.client.connect
        connect(url, additional_headers={"Authorization": "Bearer alpha"}, **PATIENT).close()
        for headers in ({}, {"Authorization": "Bearer beta"}):
            with pytest.raises(websockets.InvalidStatus) as caught:
                connect(url, additional_headers=headers, **PATIENT)
            assert caught.value.response.status_code == 401
    finally:
        stop_server(server)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("flags", "code"),
    [(("--websocket-idle-timeout", "1"), 1001), (("--websocket-max-age", "1"), 1012)],
)
def test_connection_beyond_its_idle_time_or_age_is_closed(flags, code):
    server = start_server(*flags)
    try:
        url = server.url.replace("http", "ws") + "/v1/responses"
        with websockets.sync.client.connect(url, **PATIENT) as connection:
            if code == 1012:
                told = json.loads(connection.recv())
                assert told["error"]["code"] == "websocket_connection_limit_reached"
            with pytest.raises(websockets.ConnectionClosed):
                connection.recv(timeout=60)
            assert connection.close_code == code
    finally:
        stop_server(server)
