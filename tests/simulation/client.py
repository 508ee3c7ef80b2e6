"""A client that reads answers strictly, and behaves as badly as it is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tests.simulation.loop import SimLoop
from tests.simulation.network import Line, Link
from tests.simulation.server import Port
from tests.simulation.tls import TlsClient
from tests.simulation.world import World

PATIENCE: Final = 3000.0
"""Virtual seconds that a client waits for more of an answer."""

_FRAME_PATIENCE: Final = 300.0
"""Virtual seconds that it waits for the next event of a stream, comments not counted."""


_KEY: Final = re.compile(rb"\r\nAuthorization: Bearer (.*)\r\n")


class Gone(Exception):
    """The connection has ended before the answer. The message is how."""


class BadAnswer(Exception):
    """The bytes are no answer."""


class ClientConnection:
    """The client's end of a connection.

    Args:
        sip: the most bytes that are read at a time, and the seconds between; None = all at once.
        tls: the client's side of TLS; None = the connection is plain.
        on_status: called with the key of a request, the time at which it began to be sent, and the
            status of its answer.

    Attributes:
        key: the API key of the last request; "" = none.
        sent_at: when it began to be sent.
    """

    def __init__(
        self,
        world: World,
        link: Link,
        loop: SimLoop,
        sip: tuple[int, float] | None = None,
        tls: TlsClient | None = None,
        on_status: Callable[[str, float, int], None] = lambda *_: None,
    ) -> None:
        self.tls = tls
        self.on_status = on_status
        self.key, self.sent_at = "", world.now
        self._head = b""
        self._world = world
        self._link = link
        self._sip = sip
        self._loop = loop
        self._changed = asyncio.Event()
        self._data = b""
        link.on_change = self._on_change
        self.num_read = 0

    def _on_change(self) -> None:
        self._loop.inject(self._look)

    def _look(self) -> None:
        if self.tls is not None:
            self.tls.advance()
        self._changed.set()

    def send(self, data: bytes) -> None:
        if self._link.is_reset or self._link.is_client_gone:
            return
        if b"\r\n\r\n" not in self._head:
            self._head += data
            found = _KEY.search(self._head)
            self.key = found[1].decode() if found else ""
        if self.tls is None:
            self._link.up.send(data)
        else:
            self.tls.send(data)

    def half_close(self) -> None:
        if self.tls is not None:
            self.tls.end()
        self._link.up.end()

    def close(self) -> None:
        """Closes the socket, as `close` does: with a reset, where something is unread."""
        if self._link.down.has_unread or self._link.is_reset:
            self.reset()
        else:
            self.half_close()
            self._link.is_client_gone = True

    def reset(self) -> None:
        self._link.client_resets()

    def begin_request(self) -> None:
        """Is called before a request is sent on a connection that was used."""
        self._head, self.sent_at = b"", self._world.now

    async def _more(self) -> None:
        """Waits for more bytes. Raises Gone."""
        if self._sip is not None:
            await asyncio.sleep(self._sip[1])
        tls = self.tls
        got = b"" if tls is None else tls.receive()
        while not got:
            data = await self._take()
            got = data if tls is None else tls.receive(data)
            if tls is not None and tls.error:
                raise BadAnswer(f"TLS: {tls.error}")
            if tls is not None and tls.has_ended and not got:
                raise Gone("end")
        self.num_read += len(got)
        self._data += got

    async def _take(self) -> bytes:
        """Returns what the system holds, when it holds something. Raises Gone."""
        link = self._link
        while not link.down.has_unread or (self.tls is not None and self.tls.is_shaking_hands):
            if link.is_reset:
                raise Gone("reset")
            if link.down.is_ended:
                raise Gone("end")
            self._changed.clear()
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._changed.wait()
            except TimeoutError:
                raise BadAnswer("no answer comes") from None
        return link.down.take(*(() if self._sip is None else (self._sip[0],)))

    async def line(self) -> bytes:
        while b"\r\n" not in self._data:
            await self._more()
        line, _, self._data = self._data.partition(b"\r\n")
        return line

    async def take(self, size: int) -> bytes:
        while len(self._data) < size:
            await self._more()
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    async def some(self) -> bytes:
        """Returns what has come, at least one byte. Raises Gone."""
        if not self._data:
            await self._more()
        taken, self._data = self._data, b""
        return taken

    async def rest(self) -> bytes:
        """Returns what comes until the end."""
        try:
            while True:
                await self._more()
        except Gone:
            taken, self._data = self._data, b""
            return taken


@dataclass
class Answer:
    """What a client has got.

    Attributes:
        asked_at: when all of its request was sent.
        frames: the data of each event, with the time at which it came; "[DONE]" is a string.
        is_whole: whether the answer has come to its end.
        gone: how the connection ended before that.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    frames: list[Any] = field(default_factory=list)
    asked_at: float = 0.0
    first_at: float | None = None
    ended_at: float = 0.0
    is_whole: bool = False
    gone: str = ""

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


def render(method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
    fields = {"Host": "127.0.0.1:8000"}
    if body is not None:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
    fields |= headers or {}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


FORM: Final = "multipart/form-data; boundary=simulated"
"""The content type of a form."""


def form_of(parts: Mapping[str, bytes]) -> bytes:
    """Returns the body of a form, given the content of each part by what names it."""
    head = "--simulated\r\nContent-Disposition: form-data; {}\r\n\r\n"
    bodies = [head.format(name).encode() + content + b"\r\n" for name, content in parts.items()]
    return b"".join(bodies) + b"--simulated--\r\n"


class FrameLimit(Exception):
    """The client has got as many frames as it wanted."""


async def read_answer(
    world: World, connection: ClientConnection, answer: Answer, most_frames: int | None = None
) -> None:
    """Reads one answer into `answer`.

    Raises:
        Gone: the connection ends before the answer.
        BadAnswer: it breaks the rules of HTTP or of event streams.
        FrameLimit: `most_frames` have come.
    """
    status = await connection.line()
    version, _, rest = status.partition(b" ")
    if version != b"HTTP/1.1" or not rest[:3].isdigit():
        raise BadAnswer(f"not a status line: {status[:80]!r}")
    answer.status = int(rest[:3])
    connection.on_status(connection.key, connection.sent_at, answer.status)
    while line := await connection.line():
        name, colon, value = line.decode("latin-1").partition(": ")
        if not colon:
            raise BadAnswer(f"not a header field: {line!r}")
        answer.headers[name.lower()] = value
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    pending, heard_at = b"", world.now
    if answer.headers.get("transfer-encoding") == "chunked":
        while True:
            size = int(await connection.line(), 16)
            chunk = await connection.take(size)
            if await connection.line():
                raise BadAnswer("a chunk without its end")
            if not size:
                break
            answer.body += chunk
            if is_stream:
                pending += chunk
                *frames, pending = pending.split(b"\n\n")
                if any(not frame.startswith(b":") for frame in frames):
                    heard_at = world.now
                elif world.now > heard_at + _FRAME_PATIENCE:
                    raise BadAnswer("no event comes")
                for frame in frames:
                    _add_frame(world, answer, frame)
                if most_frames is not None and len(answer.frames) >= most_frames:
                    raise FrameLimit
        if pending:
            raise BadAnswer(f"an event without its end: {pending[:80]!r}")
    elif "content-length" in answer.headers:
        answer.body = await connection.take(int(answer.headers["content-length"]))
    elif answer.headers.get("connection") == "close":
        answer.body = await connection.rest()
    else:
        raise BadAnswer("an answer of no known length")
    answer.is_whole = True
    answer.ended_at = world.now


def _add_frame(world: World, answer: Answer, frame: bytes) -> None:
    if frame.startswith(b":"):
        return  # a comment
    if answer.frames and answer.frames[-1] == "[DONE]":
        raise BadAnswer(f"a frame after the last: {frame[:80]!r}")
    event, _, data = frame.rpartition(b"data: ")
    if event and not event.startswith(b"event: "):
        raise BadAnswer(f"not an event: {frame[:80]!r}")
    if answer.first_at is None:
        answer.first_at = world.now
    if data == b"[DONE]":
        answer.frames.append("[DONE]")
        return
    try:
        answer.frames.append(orjson.loads(data))
    except ValueError:
        raise BadAnswer(f"an event that is not JSON: {frame[:80]!r}") from None


async def get(
    world: World, port: Port, line: Line, path: str, headers: dict[str, str] | None = None
) -> Answer:
    """Asks for a path over a connection of its own and returns the answer.

    Raises:
        Gone, BadAnswer: see `read_answer`.
    """
    return await ask(world, port, line, render("GET", path, None, headers))


async def ask(world: World, port: Port, line: Line, request: bytes) -> Answer:
    """Sends a request over a connection of its own and returns the answer. Raises as `get` does."""
    answer = Answer(asked_at=world.now)
    connection = connect(world, port, line)
    connection.send(request)
    try:
        await read_answer(world, connection, answer)
    finally:
        connection.close()
    return answer


async def call(
    world: World,
    port: Port,
    line: Line,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Asks until there is an answer that is not for a server that starts or ends, or for a key that
    does not count at the moment, and returns it.

    Raises:
        BadAnswer: see `read_answer`.
    """
    request = render(method, path, body, headers)
    for _ in range(1000):
        try:
            answer = await ask(world, port, line, request)
        except Gone:
            answer = Answer()
        if answer.is_whole and answer.status not in (401, 500, 503):
            break
        await asyncio.sleep(0.5)
    return answer


def connect(
    world: World, port: Port, line: Line, sip: tuple[int, float] | None = None
) -> ClientConnection:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    link = port.connect(line)
    tls = None if port.new_context is None else TlsClient(link, port.new_context())
    return ClientConnection(world, link, loop, sip, tls, port.on_status)
