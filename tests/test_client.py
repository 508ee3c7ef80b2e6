"""Tests of `fastovms/parts/client/http_client.py`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.errors import ConfigurationError, RequestFailed
from fastovms.parts.client import http_client as event_stream
from fastovms.parts.client import http_client as http_client
from fastovms.parts.client.http_client import (
    EventStream,
    HttpClient,
    Target,
    failed_with,
    first_model,
    read_event,
)
from tests.client.scripted_server import Script, scripted_server


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"error": "no such model"}', "no such model"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": [{"loc": ["a"]}]}', '[{"loc": ["a"]}]'),
        (b'{"other": 1}', '{"other": 1}'),
        (b"<html>\n Bad\tGateway", "<html> Bad Gateway"),
        (b"\xff\x1b[2J", "\ufffd\\u001b[2J"),
        (b"[" * 10000, "[" * 300),
        (b"", ""),
    ],
)
def test_failed_answer_has_its_status_and_message(body: bytes, reason: str) -> None:
    error = failed_with(502, body)
    assert (error.kind, error.reason) == ("HTTP 502", reason)


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000, "/v1"), "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", Target("127.0.0.1", 8000, "/v1"), "127.0.0.1:8000"),
        ("http://[::1]/v3", Target("::1", 80, "/v3"), "[::1]:80"),
        ("https://a.example/x/v1", Target("a.example", 443, "/x/v1", True), "a.example:443"),
        (
            "http://b\xfccher.example",
            Target("xn--bcher-kva.example", 80, "/v1"),
            "xn--bcher-kva.example:80",
        ),
    ],
)
def test_url_becomes_a_target_with_its_authority(url: str, target: Target, authority: str) -> None:
    assert Target.from_url(url) == target
    assert target.authority == authority


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://a", "http://", "http://a:port", "http://a..b", "http://.a",
     f"http://{'a' * 64}.b", "http://\udce9"],
)  # fmt: skip
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--compare.*"):
        Target.from_url(url, "--compare")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://a/v1?key=b", "query"),
        ("http://a/v1#b", "fragment"),
        ("http://b:secret@a", "user name"),
        ("http://:secret@a", "user name"),
    ],
)
def test_unused_parts_of_a_url_are_refused_by_name(url: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^URL must have no {what}: ") as caught:
        Target.from_url(url)
    assert "secret" not in str(caught.value)


STREAM = (
    b": a comment\n\n"
    b'data: {"text":"a data: b"}\n\n'
    b"event: message\r\ndata:{}\r\n\r\n"
    b"id: 5\ndata: [DONE]\n\n"
)
EVENTS = [b'{"text":"a data: b"}', b"{}", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_found_however_they_are_cut(cuts: list[int]) -> None:
    stream = EventStream()
    bounds = [0, *sorted(cuts), len(STREAM)]
    found = [event for start, end in pairwise(bounds) for event in stream.feed(STREAM[start:end])]
    assert found == EVENTS


def test_line_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_MAX_LINE", 10)
    with pytest.raises(RequestFailed, match="longer than"):
        EventStream().feed(b"data: 0123456789")


@pytest.mark.parametrize(
    ("choice", "brings_output"),
    [
        ('{"text": "a"}', True),
        ('{"text": ""}', True),  # a token that shows no text yet
        ('{"text": "", "finish_reason": "stop"}', False),
        ('{"text": "a", "finish_reason": "length"}', True),
        ('{"delta": {"role": "assistant", "content": ""}}', False),
        ('{"delta": {"content": "a"}}', True),
        ('{"delta": {"reasoning_content": "a"}}', True),
        ('{"delta": {"reasoning": "a"}}', True),
        ('{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}}', True),
        ('{"delta": {}, "finish_reason": "stop"}', False),
    ],
)
def test_events_with_text_or_calls_bring_output(choice: str, brings_output: bool) -> None:
    [read] = read_event(f'{{"id": "x", "choices": [{choice}]}}'.encode()).choices
    assert read.brings_output == brings_output


def test_usage_is_read_from_an_event() -> None:
    event = read_event(b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}')
    assert event.usage is not None
    assert (event.usage.prompt_tokens, event.usage.completion_tokens) == (3, 5)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b'{"error": {"message": "engine died"}}', "error in the stream", "engine died"),
        (b'{"error": "engine died"}', "error in the stream", "engine died"),
        (b"{", "protocol error", "an event"),
        (b'{"choices": [{"text": 5}]}', "protocol error", "an event"),
    ],
)
def test_invalid_event_is_a_protocol_error(data: bytes, kind: str, reason: str) -> None:
    with pytest.raises(RequestFailed, match=reason) as failure:
        read_event(data)
    assert failure.value.kind == kind


HTTP_CLIENT_STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(*events: bytes) -> bytes:
    data = [b"data: %b\n\n" % event for event in events]
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in data) + b"0\r\n\r\n"


@asynccontextmanager
async def answering(
    *answers: bytes, closes: bool = False
) -> AsyncIterator[tuple[HttpClient, list[bytes]]]:
    """A server that gives one answer after the other over each connection, with the client of it
    and what was asked.

    Args:
        closes: the connection, after the last answer.
    """
    asked: list[bytes] = []
    handlers: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError):
            for answer in answers:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
            if not closes:
                await reader.read()  # until the client leaves
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        target = Target("127.0.0.1", server.sockets[0].getsockname()[1], "/v1")
        client = HttpClient(target, headers={"Authorization": "Bearer k"})
        try:
            yield client, asked
        finally:
            await client.close()
            for handler in filter(None, handlers):
                await handler


async def test_bytes_of_the_command_line_are_sent_as_they_stood_there() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with answering(answer) as (client, asked):
        assert await client.ask("GET", "/caf\udce9") == b"ok"
    assert asked[0].startswith(b"GET /caf\xe9 HTTP/1.1\r\n")


async def test_connections_are_used_again() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with answering(answer, answer) as (client, asked):
        assert await client.ask("GET", "/v1/models") == b"ok"
        async with client.connection() as connection:
            assert await connection.exchange("GET", "/v1/models") == b"ok"
        assert asked[0].startswith(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nAuthorization: Bearer k\r\n" in asked[0]
        assert len(asked) == 2


async def test_a_stream_hands_on_its_events_with_their_times() -> None:
    found: list[tuple[bytes, float]] = []
    async with (
        answering(HTTP_CLIENT_STREAM + chunks(b"{}", b"[DONE]")) as (client, _),
        client.connection() as connection,
    ):
        rest = await connection.exchange("GET", "/", b"", lambda *event: found.append(event))
        assert connection.is_reusable
    assert rest == b""
    assert [data for data, _ in found] == [b"{}", b"[DONE]"]
    assert all(when > 0 for _, when in found)


async def test_answer_without_length_ends_with_the_connection() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\nall of it", closes=True) as (client, _):
        assert await client.ask("GET", "/") == b"all of it"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'HTTP/1.1 404 Not Found\r\nContent-Length: 14\r\n\r\n{"error": "a"}', "HTTP 404: a"),
        (
            HTTP_CLIENT_STREAM + chunks(b"{}")[:-9],
            "connection closed: before the end of the answer",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "connection closed"),
        (b"", "connection closed"),
        (b"SSH-2.0-OpenSSH\r\n", "protocol error"),
    ],
)
async def test_failed_exchange_raises_with_its_reason(answer: bytes, message: str) -> None:
    async with answering(answer, closes=True) as (client, _):
        with pytest.raises(RequestFailed, match=message):
            async with client.connection() as connection:
                await connection.exchange("GET", "/", b"", lambda *event: None)


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with answering(HTTP_CLIENT_STREAM) as (client, _):
        with pytest.raises(TimeoutError):
            async with client.connection() as connection, asyncio.timeout(0.05):
                await connection.exchange("GET", "/", b"", lambda *event: None)
        assert not connection.is_reusable


async def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_MAX_BODY", 10)
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b"a" * 20) as (
        client,
        _,
    ):
        with pytest.raises(RequestFailed, match="too long"):
            await client.ask("GET", "/")


async def test_request_to_a_closed_port_fails_with_no_connection(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    client = HttpClient(Target("127.0.0.1", unused_tcp_port_factory(), "/v1"))
    with pytest.raises(RequestFailed, match=r"no connection: 127.0.0.1:.* refused"):
        await client.ask("GET", "/")


async def test_certificates_are_verified_by_default() -> None:
    with scripted_server(Script(), is_tls=True) as url:
        target = Target.from_url(url)
        with pytest.raises(RequestFailed, match=r"no connection.*certificate"):
            await HttpClient(target).ask("GET", "/v1/models")
        client = HttpClient(target, verify=False)
        assert b"scripted" in await client.ask("GET", "/v1/models")
        await client.close()


@pytest.mark.parametrize(("models", "name"), [(["a", "b"], "a"), ([], None), ([5], None)])
async def test_first_model_is_the_first_of_the_list(models: list[str], name: str | None) -> None:
    with scripted_server(Script(models=models)) as url:
        client = HttpClient(Target.from_url(url))
        if name is None:
            with pytest.raises(RequestFailed, match="/v1/models lists no models"):
                await first_model(client)
        else:
            assert await first_model(client) == name
        await client.close()


SCRIPT = """
import asyncio, signal, uvloop
from fastovms.parts.client.http_client import cancelled_by

async def run():
    task = asyncio.create_task(asyncio.sleep(60))
    with cancelled_by(signal.SIGINT, signal.SIGTERM, task=task) as cancellation:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait([task], timeout=10)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
    return task.cancelled(), cancellation.exit_code

signal.signal(signal.SIGTERM, lambda number, frame: print("as before"))
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    print(runner.run(run()))
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_cancels_the_task_and_means_what_it_did_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(True, 143)\nas before\n", "")
