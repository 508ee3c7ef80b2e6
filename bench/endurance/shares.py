"""`shares`: measures the effect of a client with one key on a client with another key.

One key attacks each pool in turn: the KV cache, the event loop, stored state, uploads, files,
batches and background responses. The other key continues its own work: it streams, or creates its
first file, batch or response. The figures are of both.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from itertools import repeat
from typing import Any, Final, NamedTuple

from bench.endurance.canary import Sightings, canary
from bench.endurance.json_client import JsonClient
from bench.endurance.server import MODEL, SERVE, ServerUnderTest, server_under_test
from bench.figures.command import Command
from bench.figures.figure import Figure

_ATTACKER, _OTHER = "key-of-the-attacker", "key-of-the-other"
_HOST: Final = "127.0.0.1"
_WARM_UP: Final = 2.0
_INTERVAL: Final = 0.05
_MAX_WAIT: Final = 120.0
_BOUNDARY: Final = "of-the-upload"
_FORM: Final = f"multipart/form-data; boundary={_BOUNDARY}"
_MIB: Final = 1024 * 1024
_COMPLETIONS, _RESPONSES = "/v1/completions", "/v1/responses"
_ENDED: Final = ("completed", "failed", "expired", "cancelled", "incomplete")


def _form(content: bytes, name: str = "a.jsonl") -> bytes:
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    )
    return head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()


def _request(key: str, path: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {_HOST}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


async def _post(
    server: ServerUnderTest, key: str, path: str, body: object, content_type: str = ""
) -> tuple[int, Any]:
    """Returns the status and the body of the response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(_HOST, server.port)
    try:
        writer.write(_request(key, path, data, content_type or "application/json"))
        answer = await reader.read()
    finally:
        writer.close()
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split(None, 2)[1]), json.loads(content)


async def _get(server: ServerUnderTest, key: str, path: str) -> tuple[int, Any]:
    def ask() -> tuple[int, Any]:
        with closing(JsonClient(server.url, key)) as client:
            return client.ask("GET", path)

    return await asyncio.to_thread(ask)


async def _until_refused(
    server: ServerUnderTest, path: str, bodies: Sequence[Any], kind: str
) -> int:
    """Posts bodies with the attacker's key until one is refused. Returns the number that were
    accepted."""
    for number, body in enumerate(bodies):
        status, answer = await _post(server, _ATTACKER, path, body, kind)
        if status != 200:
            print(f"{path} after {number}: {status} {answer['error']['message']}", flush=True)
            return number
    return len(bodies)


async def _ended(server: ServerUnderTest, path: str) -> str:
    """Returns the final status of the other key's batch or response."""
    deadline = time.monotonic() + _MAX_WAIT
    while True:
        _, answer = await _get(server, _OTHER, path)
        if answer["status"] in _ENDED or time.monotonic() > deadline:
            return str(answer["status"])
        await asyncio.sleep(_INTERVAL)


# Requests of the other key


async def _make_file(server: ServerUnderTest) -> bool:
    status, _ = await _post(server, _OTHER, "/v1/files", _form(b"{}"), _FORM)
    return status == 200


async def _make_batch(server: ServerUnderTest) -> bool:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1}
    line = {"custom_id": "a", "method": "POST", "url": _COMPLETIONS, "body": body}
    status, file = await _post(server, _OTHER, "/v1/files", _form(json.dumps(line).encode()), _FORM)
    if status != 200:
        return False
    made = {"input_file_id": file["id"], "endpoint": _COMPLETIONS, "completion_window": "24h"}
    status, batch = await _post(server, _OTHER, "/v1/batches", made)
    return status == 200 and await _ended(server, f"/v1/batches/{batch['id']}") == "completed"


async def _make_answer(server: ServerUnderTest) -> bool:
    body = {"model": MODEL, "input": "Once", "max_output_tokens": 4, "background": True}
    status, answer = await _post(server, _OTHER, _RESPONSES, body)
    ends = ("completed", "incomplete")
    return status == 200 and await _ended(server, f"{_RESPONSES}/{answer['id']}") in ends


# Attacks


@asynccontextmanager
async def _connections(
    server: ServerUnderTest, count: int, data: bytes, drip: bytes
) -> AsyncIterator[None]:
    """Keeps connections that send `data` and then `drip` repeatedly until they end. Each is
    replaced when it ends."""

    async def hold() -> None:
        while True:
            reader, writer = await asyncio.open_connection(_HOST, server.port)
            try:
                writer.write(data)
                dripping = asyncio.ensure_future(_drip(writer, drip))
                try:
                    while await reader.read(_MIB):
                        pass
                finally:
                    dripping.cancel()
            except OSError:
                await asyncio.sleep(_INTERVAL)
            finally:
                writer.close()

    tasks = [asyncio.ensure_future(hold()) for _ in range(count)]
    try:
        await asyncio.sleep(_WARM_UP)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _drip(writer: asyncio.StreamWriter, drip: bytes) -> None:
    while drip:
        await asyncio.sleep(0.5)
        writer.write(drip)


async def _seen(server: ServerUnderTest, seconds: float) -> Sightings:
    """Returns the measurements of the other key's streams during the attacks."""

    def watch() -> Sightings:
        with canary(server.url, MODEL, api_key=_OTHER) as seen:
            time.sleep(seconds)
        return seen

    return await asyncio.to_thread(watch)


async def _stream(server: ServerUnderTest, options: argparse.Namespace) -> list[Figure]:
    """Measures the other key's streams, also while the attacker's streams fill the KV cache."""
    body = {
        "model": MODEL,
        "prompt": "Once upon a time there was a stream",
        "max_tokens": options.tokens,
        "ignore_eos": True,
        "stream": True,
    }
    attack = _request(_ATTACKER, _COMPLETIONS, json.dumps(body).encode())
    before = await _seen(server, options.seconds)
    async with _connections(server, options.streams, attack, b""):
        during = await _seen(server, options.seconds)
    metrics = await asyncio.to_thread(server.metrics, _OTHER)
    num_preempted = metrics["num_preemptions_total"]
    figures = [
        Figure("streams that fill the KV cache", options.streams),
        Figure("preemptions", num_preempted, at_least=1),
        Figure("the other key's streams that failed", during.num_failures, at_most=0),
    ]
    for name, seen in (("before", before), ("during", during)):
        figures += [
            Figure(f"median gap in its stream, {name}", 1000 * seen.median_gap, "ms"),
            Figure(f"99th percentile of its gaps, {name}", 1000 * seen.p99_gap, "ms"),
            Figure(f"longest gap in its stream, {name}", 1000 * seen.longest_gap, "ms"),
            Figure(f"longest wait for its first token, {name}", seen.longest_first, "s"),
        ]
    # A step with all the streams takes longer than one with a single stream, whoever they are of.
    over_before = during.p99_gap / before.p99_gap if before.p99_gap else float("nan")
    over_median = during.p99_gap / during.median_gap if during.median_gap else float("nan")
    return [
        *figures,
        Figure("99th percentile, during over before", over_before),
        Figure("99th percentile over the median, during", over_median, at_most=3),
    ]


async def _state(server: ServerUnderTest, options: argparse.Namespace) -> list[Figure]:
    """Checks that the other key's conversations remain when the attacker stores more than the limit
    of all keys."""
    paths = []
    for _ in range(options.conversations):
        _, made = await _post(server, _OTHER, "/v1/conversations", {})
        paths.append(f"/v1/conversations/{made['id']}")
    item = {"type": "message", "role": "user", "content": "x" * (4 * _MIB)}
    for _ in range(options.stored):
        status, _ = await _post(server, _ATTACKER, "/v1/conversations", {"items": [item]})
        if status != 200:
            break
    left = [path for path in paths if (await _get(server, _OTHER, path))[0] == 200]
    return [
        Figure("conversations of 4 MiB that the attacker stores", options.stored),
        Figure("the other key's conversations that are left", len(left), at_least=len(paths)),
    ]


# Attacks on the event loop, and on descriptors. Each sends as fast as the server takes it.


_MASKED: Final = 0x80
_TEXT, _PART, _PING, _PONG = 0x81, 0x00, 0x89, 0x8A
_FLOOD: Final = 64 * 1024
_UPGRADE: Final = (
    f"GET {_RESPONSES} HTTP/1.1\r\nHost: {_HOST}\r\nAuthorization: Bearer {_ATTACKER}\r\n"
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n"
).encode()
_LOOPS: Final = "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4
_WIDE: Final = "{{ '{0:>3000000000}'.format(1) }}"


def _frame(opcode: int, payload: bytes = b"") -> bytes:
    """Returns a client's WebSocket frame with a mask of zeros."""
    size = len(payload)
    if size < 126:
        head = bytes([opcode, _MASKED | size])
    elif size < 2**16:
        head = bytes([opcode, _MASKED | 126]) + size.to_bytes(2)
    else:
        head = bytes([opcode, _MASKED | 127]) + size.to_bytes(8)
    return head + bytes(4) + payload


def _message(num_bytes: int) -> bytes:
    """Returns a message with an unknown field of the given number of bytes."""
    lists = ",".join(repeat("[]", num_bytes // 3))
    text = f'{{"type":"response.create","model":"{MODEL}","input":"a","zzz":[{lists}]}}'
    return _frame(_TEXT, text.encode())


def _bodies(count: int, body: object) -> list[bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [_request(_ATTACKER, "/v1/chat/completions", data)] * count


def _with_template(template: str) -> object:
    messages = [{"role": "user", "content": "a"}]
    return {"model": MODEL, "messages": messages, "max_tokens": 1, "chat_template": template}


class _Attack(NamedTuple):
    """An attack on the event loop.

    Attributes:
        connections: the data that each of its connections sends.
        begin: a request that a connection sends first and whose response it reads; empty = none.
        repeats: whether a connection sends its data repeatedly; otherwise it waits for a response.
        flags: the server's flags.
        limit: the server's limit of descriptors; None = that of this process. Connections beyond it
            are refused, including those of the other key.
    """

    connections: Callable[[], Sequence[bytes]]
    begin: bytes = b""
    repeats: bool = False
    flags: tuple[str, ...] = ()
    limit: int | None = None


_TRUSTED: Final = ("--trust-request-chat-template",)
_LOOP_ATTACKS: Final = {
    "a message of 10 MB": _Attack(lambda: [_message(10_000_000)], _UPGRADE),
    "a message of 60 MB": _Attack(lambda: [_message(60_000_000)], _UPGRADE),
    "four messages of 20 MB on one connection": _Attack(
        lambda: [4 * _message(20_000_000)], _UPGRADE
    ),
    "pings": _Attack(lambda: [_frame(_PING) * (_FLOOD // 6)], _UPGRADE, repeats=True),
    "pongs on 16 connections": _Attack(
        lambda: [_frame(_PONG) * (_FLOOD // 6)] * 16, _UPGRADE, repeats=True
    ),
    "fragments of one byte": _Attack(
        lambda: [_frame(_TEXT & 0x7F) + _frame(_PART, b"a") * 100_000 * 10], _UPGRADE
    ),
    "empty fragments": _Attack(
        lambda: [_frame(_TEXT & 0x7F) + _frame(_PART) * 100_000 * 10], _UPGRADE
    ),
    "messages of two bytes": _Attack(
        lambda: [_frame(_TEXT, b"{}") * (_FLOOD // 8)], _UPGRADE, repeats=True
    ),
    "12 bodies of 40 MB": _Attack(lambda: _bodies(12, {"zzz": "a" * 40_000_000})),
    "8 bodies of 40 MB, nested": _Attack(lambda: _bodies(8, b'{"zzz":[' + b"[]," * 13_000_000)),
    "templates with nested loops": _Attack(
        lambda: _bodies(4, _with_template(_LOOPS)), flags=_TRUSTED
    ),
    "templates that format": _Attack(lambda: _bodies(2, _with_template(_WIDE)), flags=_TRUSTED),
    "connections to the limit of descriptors": _Attack(lambda: [b"\r\n"] * 512, limit=256),
}
_LIMITED: Final = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); "
    "runpy.run_module('fastovms', run_name='__main__')"
)


@asynccontextmanager
async def _attacking(server: ServerUnderTest, attack: _Attack) -> AsyncIterator[None]:
    """Attacks until the end of the block. Connections that the server closes are replaced."""

    async def read(reader: asyncio.StreamReader) -> None:
        while await reader.read(_MIB):
            pass

    async def hold(data: bytes) -> None:
        while True:
            writer = None
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(_HOST, server.port)
                if attack.begin:
                    writer.write(attack.begin)
                    await reader.readuntil(b"\r\n\r\n")
                reading = asyncio.ensure_future(read(reader))
                try:
                    while not reading.done():
                        writer.write(data)
                        await writer.drain()
                        if not attack.repeats:
                            await reading
                finally:
                    reading.cancel()
                    with suppress(OSError, asyncio.CancelledError):
                        await reading
            if writer is not None:
                writer.transport.abort()
            await asyncio.sleep(_INTERVAL)

    tasks = [asyncio.ensure_future(hold(data)) for data in attack.connections()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _seen_during(server: ServerUnderTest, attack: _Attack, seconds: float) -> Sightings:
    """Returns the measurements of the other key; an infinite gap if its stream does not end."""
    try:
        with canary(server.url, MODEL, api_key=_OTHER) as seen:
            await asyncio.sleep(_WARM_UP)
            async with _attacking(server, attack):
                await asyncio.sleep(seconds)
    except subprocess.TimeoutExpired:
        return Sightings(longest_gap=float("inf"))
    return seen


def _loop(options: argparse.Namespace) -> list[Figure]:
    """Measures the other key's streams while the attacker keeps the event loop busy."""
    figures = []
    for name in options.loop:
        attack = _LOOP_ATTACKS[name]
        program = SERVE
        if attack.limit is not None:
            program = ("-c", _LIMITED.format(attack.limit), "serve")
        with server_under_test(*_flags(options), *attack.flags, program=program) as server:
            print(name, flush=True)
            before = server.peak_memory()
            seen = asyncio.run(_seen_during(server, attack, options.seconds))
            figures += [
                Figure(f"{name}: longest gap", seen.longest_gap, "s", at_most=1),
                Figure(f"{name}: longest wait for a first token", seen.longest_first, "s"),
                Figure(f"{name}: streams", seen.num_streams, at_least=1),
                Figure(
                    f"{name}: streams that failed",
                    seen.num_failures,
                    at_most=None if attack.limit else 0,
                ),
                Figure(f"{name}: memory", server.peak_memory() - before, "MiB"),
            ]
    return figures


Do = Callable[[ServerUnderTest], Awaitable[bool]]


async def _timed(server: ServerUnderTest, do: Do) -> float:
    """Returns the seconds of a call; infinity if it fails."""
    start = time.monotonic()
    return time.monotonic() - start if await do(server) else float("inf")


def _firsts(what: str, before: float, during: float) -> list[Figure]:
    return [
        Figure(f"the other key's {what}, before", before, "s"),
        Figure(f"the other key's {what}, during", during, "s", at_most=3 * before + 2),
    ]


async def _uploads(server: ServerUnderTest, options: argparse.Namespace) -> list[Figure]:
    before = await _timed(server, _make_file)
    slow = _request(_ATTACKER, "/v1/files", b"", _FORM).replace(
        b"Content-Length: 0", b"Content-Length: 100000000"
    )
    start = _form(b"")[: -len(_BOUNDARY) - 8]
    async with _connections(server, options.uploads, slow + start, b"x" * 16384):
        during = await _timed(server, _make_file)
    return _firsts("file beside slow uploads", before, during)


async def _files(server: ServerUnderTest, options: argparse.Namespace) -> list[Figure]:
    before = await _timed(server, _make_file)
    bodies = [_form(b"{}")] * (options.files + 1)
    count = await _until_refused(server, "/v1/files", bodies, _FORM)
    during = await _timed(server, _make_file)
    await _delete_files(server)
    return [Figure("files of two bytes", count), *_firsts("file beside them", before, during)]


async def _delete_files(server: ServerUnderTest) -> None:
    def delete() -> None:
        with closing(JsonClient(server.url, _ATTACKER)) as client:
            while files := client.ask("GET", "/v1/files?limit=1000")[1]["data"]:
                for file in files:
                    client.ask("DELETE", f"/v1/files/{file['id']}")

    await asyncio.to_thread(delete)


async def _batches(server: ServerUnderTest, options: argparse.Namespace) -> list[Figure]:
    before = await _timed(server, _make_batch)
    _, file = await _post(
        server, _ATTACKER, "/v1/files", _form(b"\n" * options.newlines + b"{}"), _FORM
    )
    lines = _lines(options.lines)
    _, work = await _post(server, _ATTACKER, "/v1/files", _form(lines), _FORM)
    made = [
        {"input_file_id": id, "endpoint": _COMPLETIONS, "completion_window": "24h"}
        for _ in range(options.batches + 1)
        for id in (work["id"], file["id"])
    ]
    count = await _until_refused(server, "/v1/batches", made, "")
    during = await _timed(server, _make_batch)
    await _cancel_batches(server)
    return [Figure("batches of the attacker", count), *_firsts("batch beside them", before, during)]


def _lines(count: int) -> bytes:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 500, "ignore_eos": True}
    line = {"method": "POST", "url": _COMPLETIONS, "body": body}
    return b"\n".join(
        json.dumps({"custom_id": str(number), **line}).encode() for number in range(count)
    )


async def _cancel_batches(server: ServerUnderTest) -> None:
    _, batches = await _get(server, _ATTACKER, "/v1/batches?limit=100")
    for batch in batches["data"]:
        if batch["status"] not in _ENDED:
            await _post(server, _ATTACKER, f"/v1/batches/{batch['id']}/cancel", b"")


async def _background(server: ServerUnderTest, options: argparse.Namespace) -> list[Figure]:
    before = await _timed(server, _make_answer)
    body = {"model": MODEL, "input": "Once", "max_output_tokens": 1000, "background": True}
    bodies = list(repeat(body | {"ignore_eos": True}, options.answers + 1))
    count = await _until_refused(server, _RESPONSES, bodies, "")
    during = await _timed(server, _make_answer)
    return [
        Figure("background answers of the attacker", count),
        *_firsts("background answer beside them", before, during),
    ]


_LOOP: Final = "loop"
_ATTACKS: Final = {
    "kv": _stream,
    "state": _state,
    "uploads": _uploads,
    "files": _files,
    "batches": _batches,
    "background": _background,
}


def run(options: argparse.Namespace) -> Sequence[Figure]:
    figures: list[Figure] = []
    for name in options.pools:
        if name == _LOOP:
            figures += _loop(options)
            continue
        with server_under_test(*_flags(options)) as server:
            figures += asyncio.run(_ATTACKS[name](server, options))
    return figures


def _flags(options: argparse.Namespace) -> list[str]:
    flags = [] if options.model is None else [options.model, "--model-name", MODEL]
    flags += ["--cache-size", str(options.cache), "--max-files", str(options.files)]
    flags += ["--state-max-size", "64M"]
    for key in (_ATTACKER, _OTHER):
        flags += ["--api-key", key]
    return flags


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="directory of a model (default: the built-in one)")
    parser.add_argument(
        "--pools",
        nargs="+",
        choices=(_LOOP, *_ATTACKS),
        default=[_LOOP, *_ATTACKS],
        help="that are attacked",
    )
    parser.add_argument(
        "--loop",
        nargs="+",
        choices=_LOOP_ATTACKS,
        default=list(_LOOP_ATTACKS),
        help="attacks on the event loop",
    )
    parser.add_argument("--cache", type=float, default=0.02, help="GB of the KV cache")
    parser.add_argument("--streams", type=int, default=250)
    parser.add_argument("--tokens", type=int, default=400, help="of each of these streams")
    parser.add_argument("--seconds", type=float, default=20, help="that the other key streams")
    parser.add_argument("--conversations", type=int, default=20, help="of the other key")
    parser.add_argument("--stored", type=int, default=40, help="large ones of the attacker")
    parser.add_argument("--uploads", type=int, default=40, help="slow ones")
    parser.add_argument("--files", type=int, default=2000, help="that one key may have")
    parser.add_argument("--newlines", type=int, default=20_000_000, help="of a batch's input")
    parser.add_argument("--lines", type=int, default=1000, help="of another batch's input")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--answers", type=int, default=64, help="in the background")


COMMAND = Command(
    help="attacks each pool with one key, and says what another key notices",
    run=run,
    add_arguments=_add_arguments,
    short=None,
)
