"""A raw HTTP client for tests, which makes no assumptions about the answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass
class Answer:
    """A response as it was received. `body` is None if it is incomplete."""

    status: int
    headers: dict[str, str]
    body: bytes | None
    raw_head: bytes = field(repr=False, default=b"")


@dataclass
class Conversation:
    """All bytes that a server sent on one connection."""

    data: bytes
    closed: bool
    reset: bool = False

    def answers(self, methods: list[str] | None = None) -> list[Answer]:
        """Splits the bytes into messages; `methods` are those of the requests, for HEAD."""
        found = []
        rest = self.data
        while rest:
            interim = rest.startswith(b"HTTP/1.1 1")
            method = "GET"
            if methods and not interim:
                method = methods[min(len(found), len(methods) - 1)]
            answer, rest = split_answer(rest, method)
            if not interim:
                found.append(answer)
        return found

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers()]


def split_answer(data: bytes, method: str = "GET") -> tuple[Answer, bytes]:
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        raise AssertionError(f"an incomplete head: {data[:200]!r}")
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 "), lines[0]
    status = int(lines[0].split(b" ")[1])
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, separator, value = line.partition(b": ")
        assert separator, line
        key = name.decode("latin-1").lower()
        assert key not in headers, f"{key} twice"
        headers[key] = value.decode("latin-1")
    body: bytes | None
    if method == "HEAD" or status in (204, 304) or status < 200:
        body = b""
    elif "content-length" in headers:
        size = int(headers["content-length"])
        body, rest = rest[:size], rest[size:]
        if len(body) < size:
            body = None
    elif headers.get("transfer-encoding") == "chunked":
        body, rest = _dechunk(rest)
    else:
        assert headers.get("connection") == "close", "a body without framing"
        body, rest = rest, b""
    return Answer(status, headers, body, head), rest


def _dechunk(data: bytes) -> tuple[bytes | None, bytes]:
    body = b""
    while True:
        line, separator, data = data.partition(b"\r\n")
        if not separator:
            return None, b""
        size = int(line, 16)
        if size == 0:
            assert data.startswith(b"\r\n"), data[:20]
            return body, data[2:]
        chunk, data = data[:size], data[size:]
        if len(chunk) < size or not data.startswith(b"\r\n"):
            return None, b""
        body += chunk
        data = data[2:]


async def read_until_quiet(
    reader: asyncio.StreamReader, quiet: float, limit: float, answers: int = 1
) -> Conversation:
    """Reads until the server closes, until it has begun the given number of answers and then sends
    nothing for a while, or until `limit` seconds have passed."""
    data = b""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit
    num_waits = 0
    try:
        # Of two waits, a loop that had no processor for a while reads before the second one ends.
        while num_waits < 2:
            wait = quiet / 2 if data.count(b"HTTP/1.1 ") >= answers else end - loop.time()
            try:
                piece = await asyncio.wait_for(reader.read(65536), max(wait, 0.001))
            except TimeoutError:
                num_waits += 1
                continue
            if not piece:
                return Conversation(data, closed=True)
            data, num_waits = data + piece, 0
        return Conversation(data, closed=False)
    except ConnectionError:
        return Conversation(data, closed=True, reset=True)


async def talk(
    port: int,
    *pieces: bytes,
    answers: int = 1,
    quiet: float = 0.06,
    limit: float = 60.0,
) -> Conversation:
    """Connects, sends the pieces, and reads the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        try:
            for piece in pieces:
                writer.write(piece)
        except ConnectionError:
            pass
        return await read_until_quiet(reader, quiet, limit, answers)
    finally:
        writer.transport.abort()
