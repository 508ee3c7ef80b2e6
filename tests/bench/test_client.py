from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.client import RequestFailed, Target, _StreamReader, completion, run_load

EVENTS = [
    b'data: {"choices":[{"text":"a data"}]}\n\n',
    b'data: {"choices":[{"text":" b"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":27}}\n\n',
    b"data: [DONE]\n\n",
]
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = HEAD + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n"


@settings(deadline=None)
@given(st.lists(st.integers(len(HEAD), len(ANSWER)), max_size=12))
def test_events_are_counted_once_however_they_are_cut(cuts: list[int]) -> None:
    loop = asyncio.new_event_loop()
    try:
        done = loop.create_future()
        reader = _StreamReader(done)
        bounds = [0, *sorted(cuts), len(ANSWER)]
        for start, end in pairwise(bounds):
            reader.data_received(ANSWER[start:end])
        assert done.result() is None
    finally:
        loop.close()
    assert reader.timeline.num_events == len(EVENTS)
    assert reader.timeline.num_tokens == 27
    assert 1 <= len(reader.timeline.arrivals) <= len(EVENTS)


async def _serve(answer: bytes) -> asyncio.Server:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["stream"] is True
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


async def test_load_sums_its_streams() -> None:
    async with await _serve(ANSWER) as server:
        target = Target("127.0.0.1", server.sockets[0].getsockname()[1], "/v1")
        load = await run_load(target, [completion("m", [1, 2], 27)] * 3)
    assert (load.num_tokens, load.num_events) == (3 * 27, 3 * len(EVENTS))
    assert load.seconds > 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\nno such model", "no such model"),
        (ANSWER[: len(HEAD) + 50], "closed before the end"),
    ],
)
async def test_anything_but_a_whole_stream_is_an_error(answer: bytes, message: str) -> None:
    async with await _serve(answer) as server:
        target = Target("127.0.0.1", server.sockets[0].getsockname()[1], "/v1")
        with pytest.raises(RequestFailed, match=message):
            await run_load(target, [completion("m", [1], 1)] * 2)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000/v1/", Target("127.0.0.1", 8000, "/v1")),
        ("http://[::1]/v3", Target("::1", 80, "/v3")),
    ],
)
def test_target(url: str, target: Target) -> None:
    assert Target.from_url(url) == target


def test_only_http() -> None:
    with pytest.raises(ValueError, match="not an http:// address"):
        Target.from_url("https://127.0.0.1/v1")
