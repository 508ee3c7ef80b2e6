"""Nobody's bodies keep those of another client waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fastovms.api.wire.bodies import body_reader
from fastovms.api.wire.bodies.body_reader import BodyReader
from fastovms.errors import MalformedBody, Overloaded
from fastovms.http.routing.messages import Request


class Schema(msgspec.Struct):
    text: str = ""


def request(size: int, tenant: str) -> Request:
    """A request with a body of that size."""
    made = Request("POST", "/", body=b'{"text":"%b"}' % (b"a" * (size - len('{"text":""}'))))
    made.tenant = tenant
    return made


@pytest.fixture
def reader() -> Iterator[BodyReader]:
    reader = BodyReader()
    yield reader
    reader.close()


@pytest.mark.parametrize("size", [100, 100_000, 2_000_000])
async def test_bodies_of_every_size(reader: BodyReader, size: int) -> None:
    assert len((await reader.read(request(size, "a"), Schema)).text) == size - 11


@pytest.mark.parametrize("size", [10, 100_000, 2_000_000])
async def test_faults_of_every_size(reader: BodyReader, size: int) -> None:
    broken = Request("POST", "/", body=b"[" + b" " * size)
    with pytest.raises(MalformedBody):
        await reader.read(broken, Schema)


async def test_an_empty_body(reader: BodyReader) -> None:
    assert await reader.read(Request("POST", "/"), Schema, default=b"{}") == Schema()
    with pytest.raises(MalformedBody):
        await reader.read(Request("POST", "/"), Schema)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Huge bodies take until it is set, or until the test ends."""
    ended = threading.Event()
    decode = body_reader.decode

    def slowly(body: bytes, schema: type[Any]) -> Any:
        assert len(body) < 1024 * 1024 or ended.wait(10)
        return decode(body, schema)

    monkeypatch.setattr(body_reader, "decode", slowly)
    yield ended
    ended.set()


async def test_a_large_body_waits_for_no_huge_one(
    reader: BodyReader, blocked: threading.Event
) -> None:
    huge = [asyncio.create_task(reader.read(request(2_000_000, "a"), Schema)) for _ in range(8)]
    await asyncio.sleep(0)
    await asyncio.wait_for(reader.read(request(70_000, "b"), Schema), 5)
    assert not any(task.done() for task in huge)
    blocked.set()
    await asyncio.gather(*huge)


async def test_huge_bodies_are_taken_in_turn(reader: BodyReader, blocked: threading.Event) -> None:
    hostile = [asyncio.create_task(reader.read(request(2_000_000, "a"), Schema)) for _ in range(8)]
    await asyncio.sleep(0)
    other = asyncio.create_task(reader.read(request(2_000_000, "b"), Schema))
    await asyncio.sleep(0)
    blocked.set()
    await other
    assert not hostile[-1].done()
    await asyncio.gather(*hostile)


async def test_too_many_bodies(reader: BodyReader, blocked: threading.Event) -> None:
    body = request(2_000_000, "a")
    waiting = [asyncio.create_task(reader.read(body, Schema)) for _ in range(65)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="64 huge bodies of this client are waiting already"):
        await reader.read(body, Schema)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    blocked.set()
