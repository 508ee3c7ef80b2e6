"""Tests of `fastovms/api/body.py`."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api import body as body_reader
from fastovms.api.body import (
    LONG_STRING,
    MAX_STRUCTURE,
    MAX_WEIGHT,
    MAX_WIDE,
    BodyReader,
    FairThread,
    decode,
    scan,
)
from fastovms.errors import (
    BackendUnavailable,
    InvalidField,
    MalformedBody,
    Overloaded,
    RequestError,
)
from fastovms.http.messages import Caller, Request

LETTERS = 'a"\\/\n\t[]{},:é語😀\u2028 1e300'


def strings_of(text: bytes) -> list[str]:
    """Returns the decoded contents of the spans."""
    return [json.loads(b'"%b"' % text[span.start : span.end]) for span in scan(text)]


def long_ones(value: object) -> list[str]:
    """Returns the strings of a value whose text is long, in the order of the text."""
    found: list[str] = []

    def visit(value: object) -> None:
        if isinstance(value, str):
            if len(json.dumps(value, ensure_ascii=False).encode()) - 2 >= LONG_STRING:
                found.append(value)
        elif isinstance(value, list):
            for element in value:
                visit(element)
        elif isinstance(value, dict):
            for key, member in value.items():
                visit(key)
                visit(member)

    visit(value)
    return found


def random_text(rng: random.Random) -> str:
    length = rng.choice((0, 1, 5, 100, 8000, LONG_STRING, 60_000, 70_000, 200_000))
    piece = "".join(rng.choices(LETTERS, k=rng.randint(1, 50)))
    return (piece * (length // len(piece) + 1))[: length + rng.randint(0, 9)]


@pytest.mark.parametrize("seed", range(60))
def test_all_long_strings_are_found(seed):
    rng = random.Random(seed)
    value = {
        random_text(rng) + str(number): rng.choice((random_text(rng), [random_text(rng), 1, {}]))
        for number in range(rng.randint(1, 6))
    }
    text = json.dumps(value, ensure_ascii=False).encode()
    assert strings_of(text) == long_ones(value)


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("unit", [b"\\\\", b'\\"', b"\\u0022", b'x\\\\\\"'])
def test_an_escape_across_a_window(shift, unit):
    text = b'["' + b"x" * shift + unit * 40_000 + b'", "short", [[1]]]'
    assert [text[span.start - 1 : span.start] for span in scan(text)] == [b'"']
    assert [text[span.end : span.end + 1] for span in scan(text)] == [b'"']


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"1," * MAX_WEIGHT + b"1]",
        b"[" + b"{}," * 130_000 + b"1]",
        b"{" + b'"a":1,' * 100_000 + b'"b":1}',
        b"[" + b"1e300," * 800 + b"1]",
        b"[" + b"12345678901234567890," * 800 + b"1]",
        b"[" + b"9007199254740993.0," * 50_000 + b"1]",
    ],
)
def test_too_many_values(text):
    with pytest.raises(MalformedBody, match="more than 500000 values"):
        scan(text)


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b"1,[{e300" * 400_000 + b'"',
        b"[" + b"151234," * 490_000 + b"1]",
        b'["a' + b'","a' * 240_000 + b'"]',
        b"[" + b"[" * 99 + b"]" * 99 + b"]",
        b"[" + b"0.12345," * 400_000 + b"1]",
        b"\\" * 200_000,
        b"[" + b"true,false,null," * 100_000 + b"1]",
        b"[" + b"1.5," * 400_000 + b"1e300]",
        b"]" * 200_000,
        b"",
    ],
)
def test_json_with_many_brackets_is_scanned(text):
    scan(text)


def test_too_much_white_space():
    with pytest.raises(MalformedBody, match="outside of strings"):
        scan(b" " * (MAX_STRUCTURE + 1))


@pytest.mark.parametrize("filler", [b"", b" " * 70_000, b'"' + b"x" * 70_000 + b'",'])
def test_nesting_beyond_a_window(filler):
    text = b"[" * 60 + filler + b"[" * 41
    with pytest.raises(MalformedBody, match="nested more than 100 levels"):
        scan(text)
    scan(b"[" * 60 + filler + b"]" * 60 + b"[" * 100)


@pytest.mark.slow
@given(st.text(alphabet='\\"[]{},:1eu0dé', max_size=60).map(str.encode))
def test_scan_of_invalid_json_yields_valid_spans(text):
    with suppress(MalformedBody):
        for span in scan(text * 2000):
            assert 0 < span.start < span.end


class Inner(msgspec.Struct, frozen=True):
    text: str = ""


class Body(msgspec.Struct, frozen=True):
    prompt: str | list[str | int] | None = None
    items: list[dict[str, Any]] | None = None
    inner: Inner | None = None
    table: dict[str, Any] | None = None


PIECES = (
    "a",
    "é",
    "語",
    "😀",
    "\\n",
    "\\/",
    "\\\\",
    '\\"',
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\u2028",
    " ",
)


def random_literal(rng: random.Random) -> str:
    """Returns the JSON text of a string of up to some megabytes."""
    unit = "".join(rng.choices(PIECES, k=rng.randint(1, 12)))
    return '"' + "x" * rng.randint(0, 9) + unit * rng.choice((1, 1000, 60_000)) + '"'


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_large_body_decodes_like_a_small_one(seed):
    rng = random.Random(seed)
    literals = [random_literal(rng) for _ in range(7)]
    prompt, other, unknown, item, element, inner, key = literals
    text = (
        f'{{"prompt":[{prompt},5,{other}],"unknown":{unknown},'
        f'"items":[{{"a":{item}}},{{"b":[{element},null,1.5]}}],"inner":{{"text":{inner}}},'
        f'"table":{{{key}:{{"deep":[[{{"er":"short"}}]]}}}},"pad":"{"p" * 1024 * 1024}"}}'
    )
    body = decode(text.encode(), Body)
    expected = msgspec.json.decode(text, type=Body)
    assert body == expected


@pytest.mark.parametrize(
    "tail", ["\\", "\\u", "\\ud8", "\\ud83d", "\\ud83dx", "\\x", "\n", "\\udc00"]
)
@pytest.mark.parametrize("filler", ["x", "\\n"])
def test_a_string_that_is_no_json(tail, filler):
    text = '{"prompt": "' + filler * 1_200_000 + tail + '", "items": []}'
    with pytest.raises((MalformedBody, InvalidField)):
        decode(text.encode(), Body)


def test_bytes_that_are_no_utf8():
    for wrong in (b"\xff", b"\x80" * 9, b"\xc3", b"\xed\xa0\x80"):
        with pytest.raises(MalformedBody, match="not valid UTF-8"):
            decode(b'{"prompt": "' + b"x" * 1_200_000 + wrong + b'"}', Body)


def test_a_wide_string_has_a_limit():
    with pytest.raises(MalformedBody, match="not all of them ASCII"):
        decode('{{"prompt": "é{}"}}'.format("x" * MAX_WIDE).encode(), Body)
    assert len(decode(b'{"prompt": "%b"}' % (b"x" * (MAX_WIDE + 1)), Body).prompt) > MAX_WIDE


def test_text_outside_of_long_strings_has_a_limit():
    with pytest.raises(MalformedBody, match="outside of strings"):
        decode(b'{"prompt": ["' + b'","'.join([b"x" * 5000] * 2000) + b'"]}', Body)


def test_placeholders_do_not_collide_with_client_text():
    text = json.dumps({"prompt": ["0", "x" * 2_000_000, "1", "{secret}0"]})
    assert decode(text.encode(), Body).prompt == json.loads(text)["prompt"]


# Clients take turns in a thread, so that no client's calls fill its queue.


class Gate:
    """A thread whose calls wait until the test releases them. Records the calls when they begin."""

    def __init__(self) -> None:
        self.thread: FairThread[str] = FairThread("things", per_client=3, total=4)
        self.begun: list[str] = []
        self.entered = threading.Event()
        self.opened = threading.Event()

    def call(self, name: str) -> Callable[[], str]:
        def wait() -> str:
            self.begun.append(name)
            self.entered.set()
            assert self.opened.wait(60)
            return name

        return wait

    async def send(self, *names: str) -> list[asyncio.Task[str]]:
        """Runs calls; the first letter of each names its client."""
        tasks = [asyncio.create_task(self.thread.run(name[0], self.call(name))) for name in names]
        await asyncio.sleep(0)
        return tasks


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()
    gate.thread.close()


async def test_clients_take_turns(gate: Gate) -> None:
    tasks = await gate.send("a1", "a2", "a3", "b1")
    gate.opened.set()
    assert await asyncio.gather(*tasks) == ["a1", "a2", "a3", "b1"]
    assert gate.begun == ["a1", "b1", "a2", "a3"]  # a1 began before b1 was queued


async def test_a_client_has_a_limit_and_makes_room_for_others(gate: Gate) -> None:
    tasks = await gate.send("a1", "a2", "a3", "a4", "a5", "b1", "c1")
    with pytest.raises(Overloaded, match="3 things of this client are waiting already"):
        await tasks[4]
    with pytest.raises(Overloaded, match="too many things of this client are waiting"):
        await tasks[3]  # c1 has displaced it
    gate.opened.set()
    assert await asyncio.gather(*tasks[:3], *tasks[5:]) == ["a1", "a2", "a3", "b1", "c1"]


async def test_cancelled_caller_leaves_the_queue_in_order(gate: Gate) -> None:
    first, second, third = await gate.send("a1", "a2", "a3")
    assert await asyncio.to_thread(gate.entered.wait, 60)
    first.cancel()
    second.cancel()
    await asyncio.wait((first, second))
    await asyncio.sleep(0.01)
    assert gate.begun == ["a1"]  # the thread is still running it
    gate.opened.set()
    assert await third == "a3"
    assert gate.begun == ["a1", "a3"]


async def test_closed_thread_refuses_calls_but_completes_the_running_one(gate: Gate) -> None:
    first, second = await gate.send("a1", "a2")
    gate.thread.close()
    with pytest.raises(BackendUnavailable):
        await second
    with pytest.raises(BackendUnavailable):
        await gate.thread.run("a", gate.call("a3"))
    gate.opened.set()
    assert await first == "a1"
    assert gate.begun == ["a1"]


@pytest.mark.slow
async def test_failed_call_frees_its_body_at_once(gate: Gate) -> None:
    """Bodies are large and must not wait for the garbage collector."""

    class Body:
        def decode(self) -> str:
            raise ValueError("no body")

    body = Body()
    kept = weakref.ref(body)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no body") as caught:
            await gate.thread.run("a", body.decode)
        del body, caught
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()


class BodyInner(msgspec.Struct):
    flag: bool = False


class Schema(msgspec.Struct):
    number: float | None = None
    inner: BodyInner | None = None
    items: list[str | int] | None = None
    table: dict[str, float] | None = None
    kind: Literal["a", "b"] | None = None
    free: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"number": "x"}', "number", 'number must be a number, not "x"'),
        (b'{"number": true}', "number", "number must be a number, not true"),
        (b'{"inner": {"flag": 1}}', "inner.flag", "inner.flag must be true or false, not 1"),
        (b'{"inner": []}', "inner", "inner must be an object, not []"),
        (b'{"items": ["a", null]}', "items[1]", "items[1] must be an integer or a string, not null"),  # noqa: E501
        (b'{"table": {"a": "b"}}', "table.a", 'table.a must be a number, not "b"'),
        (b'{"number": 1e999}', "number", "number: number out of range"),
        (b'{"table": {"a": 1e999}}', "table", "table: number out of range"),
        (b'{"free": {"a": {"b": [1, 1e999]}}}', "free", "free: number out of range"),
    ],
)  # fmt: skip
def test_invalid_value_is_refused_with_its_field_and_reason(body, param, message):
    with pytest.raises(InvalidField) as caught:
        decode(body, Schema)
    assert (caught.value.param, caught.value.message) == (param, message)


LONG = b"y" * 2_000_000
SHOWN = "y" * 56 + "..."


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"number": "%b"}', "number", f'number must be a number, not "{SHOWN}'),
        (b'{"number": {"a": ["%b"]}}', "number", 'number must be a number, not {"a": ["' + SHOWN[7:]),  # noqa: E501
        (b'{"number": {"%b": 1}}', "number", f'number must be a number, not {{"{SHOWN[1:]}'),
        (b'{"table": {"a": "%b"}}', "table.a", f'table.a must be a number, not "{SHOWN}'),
        (b'{"table": {"%b": "z"}}', f"table.{'y' * 20}", f"table.{'y' * 20} must be a number, not \"z\""),  # noqa: E501
        (b'{"kind": "%b"}', "kind", f"kind: invalid enum value '{'y' * 60}'"),
        (b'{"x": {"%b": NaN}}', ("x." + "y" * 98), f"the body is not valid JSON: x.{'y' * 98} must be a finite number, not NaN"),  # noqa: E501
        (b'{"x": "%b", nothing}', None, "the body is not valid JSON: JSON is malformed: object keys must be strings"),  # noqa: E501
        (b'{"x": "%b\\z"}', None, "the body is not valid JSON: JSON is malformed: invalid escape character in string"),  # noqa: E501
    ],
)  # fmt: skip
def test_fault_beside_a_long_string_quotes_the_client(body, param, message):
    with pytest.raises(RequestError) as caught:
        decode(body.replace(b"%b", LONG), Schema)
    assert (caught.value.param, caught.value.message) == (param, message)


def test_fault_in_a_huge_body_is_reported_without_its_value():
    with pytest.raises(InvalidField, match=r"^number must be a number$"):
        decode(b'{"items": [' + b'"a string",' * 200_000 + b'1], "number": "x"}', Schema)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xff", "not valid UTF-8"),
        (b"{", "not valid JSON"),
        (b"NaN", "not valid JSON"),
        (b'{"x": NaN' + b"[" * 500, "nested more than 100 levels"),
        (b'{"x": "' + b"[" * 500 + b'", NaN', "not valid JSON"),
        (b'{"x": [' + b"1," * 1_000_000 + b"1]}", "more than 500000 values"),
        (b'{"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "nested more than 100 levels"),
        (b'{"x":' * 50 + b"NaN" + b"}" * 50 + b"}", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"x":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 100 levels"),
        (b'{"x":' + b"[" * 2000 + b"NaN", "nested more than 100 levels"),
    ],
)
def test_malformed_body_is_refused_with_the_reason(body, message):
    with pytest.raises(MalformedBody, match=message):
        decode(body, Schema)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"items": [[]], "items": {}}', "items[0]", "items[0] must be an integer or a string"),
        (b'{"items": [null], "items": []}', "items[0]", "items[0] must be an integer or a string"),
        (b'{"number": "x", "number": 1}', "number", "number must be a number"),
        (b'{"number": 1, "number": "x"}', "number", "number must be a number"),
        (b'{"inner": {"flag": 1}, "inner": 5}', "inner.flag", "inner.flag must be true or false"),
        (b'{"table": {"a": "b"}, "table": 5}', "table", "table must be a number"),
        (b'{"table": {"a": "b", "a": 1, "c": null}}', "table.c", "table.c must be a number, not null"),  # noqa: E501
        (b'{"number": "x", "y": NaN, "z": %s}' % (b"1" * 5000), "number", "number must be a number"),  # noqa: E501
    ],
)  # fmt: skip
def test_error_leaves_out_the_value_of_a_repeated_key(body, param, message):
    with pytest.raises(InvalidField) as caught:
        decode(body, Schema)
    assert (caught.value.param, caught.value.message) == (param, message)


# Bodies of one client do not delay those of another client.


class BodyReaderSchema(msgspec.Struct):
    text: str = ""


def request(size: int, tenant: str) -> Request:
    """Returns a request with a body of that size."""
    made = Request("POST", "/", body=b'{"text":"%b"}' % (b"a" * (size - len('{"text":""}'))))
    made.caller = Caller(tenant=tenant)
    return made


@pytest.fixture
def reader() -> Iterator[BodyReader]:
    reader = BodyReader()
    yield reader
    reader.close()


@pytest.mark.parametrize("size", [100, 100_000, 2_000_000])
async def test_bodies_of_every_size(reader: BodyReader, size: int) -> None:
    assert len((await reader.read(request(size, "a"), BodyReaderSchema)).text) == size - 11


@pytest.mark.parametrize("size", [10, 100_000, 2_000_000])
async def test_faults_of_every_size(reader: BodyReader, size: int) -> None:
    broken = Request("POST", "/", body=b"[" + b" " * size)
    with pytest.raises(MalformedBody):
        await reader.read(broken, BodyReaderSchema)


async def test_an_empty_body(reader: BodyReader) -> None:
    assert (
        await reader.read(Request("POST", "/"), BodyReaderSchema, default=b"{}")
        == BodyReaderSchema()
    )
    with pytest.raises(MalformedBody):
        await reader.read(Request("POST", "/"), BodyReaderSchema)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event. Large bodies take until it is set, or until the test ends."""
    ended = threading.Event()
    decode = body_reader.decode

    def slowly(body: bytes, schema: type[Any], unread: list[str]) -> Any:
        assert len(body) < 1024 * 1024 or ended.wait(60)
        return decode(body, schema, unread)

    monkeypatch.setattr(body_reader, "decode", slowly)
    yield ended
    ended.set()


async def test_a_large_body_waits_for_no_huge_one(
    reader: BodyReader, blocked: threading.Event
) -> None:
    huge = [
        asyncio.create_task(reader.read(request(2_000_000, "a"), BodyReaderSchema))
        for _ in range(8)
    ]
    await asyncio.sleep(0)
    await asyncio.wait_for(reader.read(request(70_000, "b"), BodyReaderSchema), 60)
    assert not any(task.done() for task in huge)
    blocked.set()
    await asyncio.gather(*huge)


async def test_too_many_bodies(reader: BodyReader, blocked: threading.Event) -> None:
    body = request(2_000_000, "a")
    waiting = [asyncio.create_task(reader.read(body, BodyReaderSchema)) for _ in range(65)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="64 huge bodies of this client are waiting already"):
        await reader.read(body, BodyReaderSchema)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    blocked.set()


async def test_a_thread_that_cannot_be_started_fails_only_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, failures = threading.Thread.start, []

    def fail(thread: threading.Thread) -> None:
        if not failures:
            failures.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    thread: FairThread[str] = FairThread("things", per_client=3, total=4)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await thread.run("a", lambda: "first")
    assert await thread.run("a", lambda: "second") == "second"
    thread.close()
