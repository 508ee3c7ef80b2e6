"""The cases of Autobahn's test suite for servers, by its numbers, against a server that echoes.

Its cases with binary messages (1.2, and half of 9) get 1003 here, as messages are JSON texts; 12
and 13 are about compression, which is not negotiated.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from tests.http.conftest import Start
from tests.http.test_websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    Client,
    connected,
    frame,
)

MORE = 0
HELLO = b"Hello, world!"
GREEK = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"
MIXED = "Hello-µ@ßöäüàá-UTF-8!!".encode()
DAMAGED = GREEK + b"\xed\xa0\x80edited"
TOO_HIGH = b"\xf4\x90\x80\x80"
PROTOCOL, NO_UTF_8 = 1002, 1007


class Case(NamedTuple):
    """The frames to send, the expected frames, and the code of the server's close frame.

    Attributes:
        code: None = the connection continues until the client closes it. Otherwise it may end
            before its answers, because a close frame is sent before waiting messages.
    """

    number: str
    frames: Sequence[bytes]
    answers: Sequence[tuple[int, bytes]] = ()
    code: int | None = None


def bits(reserved: int, opcode: int, payload: bytes = b"") -> bytes:
    """Returns a frame with reserved bits."""
    whole = frame(opcode, payload)
    return bytes([whole[0] | reserved << 4]) + whole[1:]


def fragments(payload: bytes, size: int) -> list[bytes]:
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    last = len(pieces) - 1
    return [
        frame(TEXT if not index else MORE, piece, final=index == last)
        for index, piece in enumerate(pieces)
    ]


def echoed(number: str, payload: bytes, frames: Sequence[bytes] = ()) -> Case:
    return Case(number, frames or [frame(TEXT, payload)], [(TEXT, payload)])


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def text_cases() -> Iterator[Case]:
    for number, size in enumerate((0, 125, 126, 127, 128, 65535, 65536), 1):
        yield echoed(f"1.1.{number}", b"*" * size)
        yield Case(f"1.2.{number}", [frame(BINARY, b"\xfe" * size)], code=1003)


def control_cases() -> Iterator[Case]:
    odd = b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff"
    for number, payload in enumerate((b"", HELLO, odd, b"\xfe" * 125), 1):
        yield Case(f"2.{number}", [frame(PING, payload)], [(PONG, payload)])
    yield Case("2.5", [frame(PING, b"\xfe" * 126)], code=PROTOCOL)
    yield Case("2.7", [frame(PONG)])
    yield Case("2.8", [frame(PONG, HELLO)])
    yield Case("2.9", [frame(PONG, HELLO), frame(PING, b"p")], [(PONG, b"p")])
    pings = [b"payload-%d" % number for number in range(10)]
    yield Case("2.10", [frame(PING, p) for p in pings], [(PONG, p) for p in pings])


def reserved_cases() -> Iterator[Case]:
    said = frame(TEXT, HELLO), [(TEXT, HELLO)]
    yield Case("3.1", [bits(1, TEXT, HELLO)], code=PROTOCOL)
    yield Case("3.2", [said[0], bits(2, TEXT, HELLO), frame(PING)], said[1], PROTOCOL)
    yield Case("3.4", [said[0], bits(4, TEXT, HELLO), frame(PING)], said[1], PROTOCOL)
    yield Case("3.5", [bits(5, BINARY, b"\0")], code=PROTOCOL)
    yield Case("3.6", [bits(6, PING, HELLO)], code=PROTOCOL)
    yield Case("3.7", [bits(7, CLOSE, HELLO)], code=PROTOCOL)
    for group, opcodes in enumerate((range(3, 8), range(11, 16)), 1):
        for number, opcode in enumerate(opcodes, 1):
            payload = HELLO * (number % 2)
            yield Case(f"4.{group}.{number}a", [frame(opcode, payload)], code=PROTOCOL)
            later = [said[0], frame(opcode, payload), frame(PING)]
            yield Case(f"4.{group}.{number}b", later, said[1], PROTOCOL)


def fragment_cases() -> Iterator[Case]:
    first, second = frame(TEXT, b"fragment1", final=False), frame(MORE, b"fragment2")
    whole = [(TEXT, b"fragment1fragment2")]
    ping, pong = frame(PING, b"p"), (PONG, b"p")
    for number, opcode in ((1, PING), (2, PONG)):
        pieces = [frame(opcode, b"fragment1", final=False), second]
        yield Case(f"5.{number}", pieces, code=PROTOCOL)
    yield Case("5.3", [first, second], whole)
    yield Case("5.6", [first, ping, second], [pong, *whole])
    for number, final in ((9, True), (12, False)):
        alone = frame(MORE, b"non-continuation", final=final)
        yield Case(f"5.{number}", [alone, frame(TEXT, HELLO)], code=PROTOCOL)
        after = [first, second, alone, frame(TEXT, HELLO)]
        yield Case(f"5.15.{final}", after, whole, PROTOCOL)
        yield Case(f"5.16.{final}", [alone, first, second], code=PROTOCOL)
    yield Case("5.18", [first, frame(TEXT, b"fragment2")], code=PROTOCOL)
    names = [b"fragment%d" % number for number in range(1, 6)]
    pieces = [
        frame(MORE if index else TEXT, name, final=index == 4) for index, name in enumerate(names)
    ]
    mixed = [*pieces[:2], ping, *pieces[2:4], ping, pieces[4]]
    yield Case("5.19", mixed, [pong, pong, (TEXT, b"".join(names))])


VALID = {
    "6.5.1": GREEK,
    "6.7.1": b"\0", "6.7.2": b"\xc2\x80", "6.7.3": b"\xe0\xa0\x80", "6.7.4": b"\xf0\x90\x80\x80",
    "6.9.1": b"\x7f", "6.9.2": b"\xdf\xbf", "6.9.3": b"\xef\xbf\xbf", "6.9.4": b"\xf4\x8f\xbf\xbf",
    "6.11.1": b"\xed\x9f\xbf", "6.11.2": b"\xee\x80\x80", "6.11.3": b"\xef\xbf\xbd",
    "6.11.4": b"\xf4\x8f\xbf\xbf",
    "6.22.1": b"\xef\xbf\xbe", "6.22.2": b"\xef\xbf\xbf",
    **{
        f"6.22.{2 * plane + 1 + last}": chr(plane * 0x10000 + 0xFFFE + last).encode()
        for plane in range(1, 17)
        for last in (0, 1)
    },
    "6.23.1": "\ufff9".encode(), "6.23.2": "\ufffa".encode(), "6.23.3": "\ufffb".encode(),
    "6.23.4": "\ufffc".encode(), "6.23.5": "\ufffd".encode(),
}  # fmt: skip
INVALID = {
    "6.3.1": DAMAGED,
    "6.8.1": b"\xf8\x88\x80\x80\x80", "6.8.2": b"\xfc\x84\x80\x80\x80\x80",
    "6.10.1": b"\xf7\xbf\xbf\xbf", "6.10.2": b"\xfb\xbf\xbf\xbf\xbf",
    "6.10.3": b"\xfd\xbf\xbf\xbf\xbf\xbf",
    "6.11.5": TOO_HIGH,
    **{f"6.12.{count}": (b"\x80\xbf" * 4)[:count] for count in range(1, 8)},
    "6.12.8": bytes(range(0x80, 0xC0)),
    **{
        f"6.13.{number}": b"".join(bytes([start]) + b" " for start in starts)
        for number, starts in enumerate(
            (range(0xC0, 0xE0), range(0xE0, 0xF0), range(0xF0, 0xF8), range(0xF8, 0xFC),
             range(0xFC, 0xFE)), 1)
    },
    "6.14.1": b"\xc0", "6.14.2": b"\xe0\x80", "6.14.3": b"\xf0\x80\x80",
    "6.14.4": b"\xf8\x80\x80\x80", "6.14.5": b"\xfc\x80\x80\x80\x80", "6.14.6": b"\xdf",
    "6.14.7": b"\xef\xbf", "6.14.8": b"\xf7\xbf\xbf", "6.14.9": b"\xfb\xbf\xbf\xbf",
    "6.14.10": b"\xfd\xbf\xbf\xbf\xbf",
    "6.15.1": b"\xc0\xe0\x80\xf0\x80\x80\xf8\x80\x80\x80\xdf\xef\xbf\xf7\xbf\xbf",
    "6.16.1": b"\xfe", "6.16.2": b"\xff", "6.16.3": b"\xfe\xfe\xff\xff",
    "6.17.1": b"\xc0\xaf", "6.17.2": b"\xe0\x80\xaf", "6.17.3": b"\xf0\x80\x80\xaf",
    "6.17.4": b"\xf8\x80\x80\x80\xaf", "6.17.5": b"\xfc\x80\x80\x80\x80\xaf",
    "6.18.1": b"\xc1\xbf", "6.18.2": b"\xe0\x9f\xbf", "6.18.3": b"\xf0\x8f\xbf\xbf",
    "6.18.4": b"\xf8\x87\xbf\xbf\xbf", "6.18.5": b"\xfc\x83\xbf\xbf\xbf\xbf",
    "6.19.1": b"\xc0\x80", "6.19.2": b"\xe0\x80\x80", "6.19.3": b"\xf0\x80\x80\x80",
    "6.19.4": b"\xf8\x80\x80\x80\x80", "6.19.5": b"\xfc\x80\x80\x80\x80\x80",
    **{
        f"6.20.{number}": chr(surrogate).encode("utf-8", "surrogatepass")
        for number, surrogate in enumerate(
            (0xD800, 0xDB7F, 0xDB80, 0xDBFF, 0xDC00, 0xDF80, 0xDFFF), 1)
    },
    **{
        f"6.21.{number}": (chr(high) + chr(low)).encode("utf-8", "surrogatepass")
        for number, (high, low) in enumerate(
            ((high, low) for high in (0xD800, 0xDB7F, 0xDB80, 0xDBFF) for low in (0xDC00, 0xDFFF)),
            1)
    },
}  # fmt: skip
ENDS_OF_CHARACTERS = {2, 5, 7, 9, 11}


def utf_8_cases() -> Iterator[Case]:
    empty = [frame(TEXT, final=False), frame(MORE, final=False), frame(MORE)]
    yield echoed("6.1.1", b"")
    yield echoed("6.1.2", b"", empty)
    yield echoed("6.1.3", b"middle", [empty[0], frame(MORE, b"middle", final=False), empty[2]])
    yield echoed("6.2.1", MIXED)
    yield echoed("6.2.2", MIXED, fragments(MIXED, 12))
    yield echoed("6.2.3", MIXED, fragments(MIXED, 1))
    yield echoed("6.2.4", GREEK, fragments(GREEK, 1))
    yield Case("6.3.2", fragments(DAMAGED, 1), code=NO_UTF_8)
    # The text is refused before its last fragment is received.
    start = frame(TEXT, GREEK, final=False)
    yield Case("6.4.1", [start, frame(MORE, TOO_HIGH, final=False)], code=NO_UTF_8)
    yield Case("6.4.2", [start, frame(MORE, TOO_HIGH[:2], final=False)], code=NO_UTF_8)
    for number, size in enumerate(range(1, len(GREEK) + 1), 1):
        if size in ENDS_OF_CHARACTERS:
            yield echoed(f"6.6.{number}", GREEK[:size])
        else:
            yield Case(f"6.6.{number}", [frame(TEXT, GREEK[:size])], code=NO_UTF_8)
    for number, payload in VALID.items():
        yield echoed(number, payload)
    for number, payload in INVALID.items():
        yield Case(number, [frame(TEXT, payload)], code=NO_UTF_8)


def close_cases() -> Iterator[Case]:
    said = frame(TEXT, HELLO)
    yield Case("7.1.1", [said, close(1000)], [(TEXT, HELLO)], 1000)
    yield Case("7.1.2", [close(1000), close(1000)], code=1000)
    yield Case("7.1.3", [close(1000), frame(PING)], code=1000)
    yield Case("7.1.4", [close(1000), said], code=1000)
    begun = frame(TEXT, b"fragment1", final=False)
    yield Case("7.1.5", [begun, close(1000), frame(MORE, b"fragment2")], code=1000)
    large = b"BAsd7&jh23" * 26_000
    yield Case(
        "7.1.6", [frame(TEXT, large), said, close(1000), frame(PING)],
        [(TEXT, large), (TEXT, HELLO)], 1000,
    )  # fmt: skip
    yield Case("7.3.1", [frame(CLOSE)], code=1000)
    yield Case("7.3.2", [frame(CLOSE, b"a")], code=PROTOCOL)
    yield Case("7.3.3", [close(1000)], code=1000)
    yield Case("7.3.4", [close(1000, HELLO)], code=1000)
    yield Case("7.3.5", [close(1000, b"*" * 123)], code=1000)
    yield Case("7.3.6", [close(1000, b"*" * 124)], code=PROTOCOL)
    yield Case("7.5.1", [close(1000, DAMAGED)], code=NO_UTF_8)
    taken = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
    for number, code in enumerate(taken, 1):
        yield Case(f"7.7.{number}", [close(code)], code=code)
    refused = (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999)
    for number, code in enumerate(refused, 1):
        yield Case(f"7.9.{number}", [close(code)], code=PROTOCOL)
    yield Case("7.13.1", [close(5000)], code=PROTOCOL)
    yield Case("7.13.2", [close(65535)], code=PROTOCOL)


def large_cases() -> Iterator[Case]:
    for number, size in enumerate((64, 256, 1023), 1):
        text = b"*" * (size * 1024)
        yield echoed(f"9.1.{number}", text)
        yield echoed(f"9.3.{number}", text, fragments(text, 4096))
    yield echoed("9.3.9", b"*" * 65536, fragments(b"*" * 65536, 64))
    for number, size in enumerate((0, 16, 64, 256, 1024, 4096), 1):
        texts = [b"%04d" % index + b"*" * size for index in range(100)]
        yield Case(f"9.7.{number}", [frame(TEXT, t) for t in texts], [(TEXT, t) for t in texts])
    yield echoed("10.1.1", b"*" * 65536, fragments(b"*" * 65536, 1300))


CASES = [
    *text_cases(),
    *control_cases(),
    *reserved_cases(),
    *fragment_cases(),
    *utf_8_cases(),
    *close_cases(),
    *large_cases(),
]


async def answers(client: Client) -> tuple[list[tuple[int, bytes]], int | None]:
    """Returns the frames up to the server's close frame, and its code; None = there is no such
    frame."""
    found = []
    while True:
        try:
            opcode, payload = await client.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return found, None
        if opcode == CLOSE:
            return found, int.from_bytes(payload[:2], "big")
        found.append((opcode, payload))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
async def test_autobahn_case_gets_its_answers_and_close_code(start: Start, case: Case) -> None:
    """Frames are sent at once, one by one, and byte by byte."""
    running = await start()
    together = b"".join(case.frames)
    ways: list[Sequence[bytes]] = [[together], case.frames]
    if len(together) < 4096:
        ways.append([bytes([byte]) for byte in together])
    for way in ways:
        async with connected(running.port) as client:
            for piece in way:
                client.send(piece)
                if len(way) > 1:
                    await asyncio.sleep(0)
            if case.code is None:
                assert [await client.read() for _ in case.answers] == list(case.answers)
                client.send(close(1000))
            found, code = await answers(client)
            assert found == ([] if case.code is None else list(case.answers[: len(found)]))
            assert code == (1000 if case.code is None else case.code)
            assert await client.reader.read() == b"", "the server ends the connection"
