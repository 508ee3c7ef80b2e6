"""Mutates bytes as fuzzers do. The generator determines every choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Final

TOKENS: Final = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b"\t", b" ", b":", b",", b";", b"\x7f", b"\xff"),
    *(
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"%00",
        b"%2f",
        b"..",
        b"//",
        b"?",
        b"#",
        b"*",
        b"@",
        b"\\",
    ),
    *(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(b"GET ", b"POST ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"TRACE ", b"\x16\x03\x01\x02\x00"),
    *(b"Host: localhost\r\n", b"Host: a\r\nHost: b\r\n", b"Content-Length: 5\r\n"),
    *(b"Content-Length: 18446744073709551616\r\n", b"Content-Length: 0\r\n"),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello",
    ),
    *(b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Connection: Upgrade\r\n"),
    *(b"Upgrade: h2c\r\n", b"Content-Type: text/plain\r\n", b"Content-Encoding: gzip\r\n"),
    *(b"Origin: null\r\n", b"Authorization: Bearer \xff\r\n", b"X-Request-Id: a\x1b[0m\r\n"),
)
"""Tokens that have a meaning for an HTTP parser."""

NUMBERS: Final = (
    *(b"0", b"-1", b"1", b"00", b"+5", b"5 ", b"0x10", b"1e3", b"1_0", b"\xd9\xa5", b"65535"),
    *(b"2147483648", b"9223372036854775807", b"18446744073709551616", b"9" * 40),
)
_MAX_SIZE: Final = 64 * 1024

Mutation = Callable[[bytes, Random], bytes]


def _flip_bit(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _set_byte(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _delete(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + 1 + rng.randrange(16) :]


def _truncate(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _insert_token(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(TOKENS) + data[place:]


def _insert_at_line(data: bytes, rng: Random) -> bytes:
    """Inserts a token at the beginning of a line."""
    lines = data.split(b"\r\n")
    place = rng.randrange(len(lines))
    return b"\r\n".join([*lines[:place], rng.choice(TOKENS) + lines[place], *lines[place + 1 :]])


def _repeat(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    part = data[start : start + 1 + rng.randrange(64)]
    times = 2 if rng.random() < 0.9 else rng.randrange(2, 500)
    return data[:start] + part * times + data[start:]


def _swap_lines(data: bytes, rng: Random) -> bytes:
    lines = data.split(b"\r\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\r\n".join(lines)


def _repeat_line(data: bytes, rng: Random) -> bytes:
    lines = data.split(b"\r\n")
    place = rng.randrange(len(lines))
    times = 2 if rng.random() < 0.95 else 200
    return b"\r\n".join([*lines[:place], *[lines[place]] * times, *lines[place + 1 :]])


def _set_number(data: bytes, rng: Random) -> bytes:
    """Replaces a run of digits with a boundary value."""
    places = [place for place, byte in enumerate(data[:2000]) if 48 <= byte <= 57]
    if not places:
        return _insert_token(data, rng)
    start = end = rng.choice(places)
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return data[:start] + rng.choice(NUMBERS) + data[end:]


def _swap_case(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    end = start + 1 + rng.randrange(20)
    return data[:start] + data[start:end].swapcase() + data[end:]


MUTATIONS: Final[Sequence[Mutation]] = (
    *(_flip_bit, _set_byte, _delete, _truncate, _insert_token, _insert_at_line, _repeat),
    *(_swap_lines, _repeat_line, _set_number, _swap_case),
)


def mutate(data: bytes, rng: Random) -> bytes:
    """Applies one to four mutations. The result has at most 64 KiB."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if not data:
            break
        data = rng.choice(MUTATIONS)(data, rng)
    return data[:_MAX_SIZE]


def splice(one: bytes, other: bytes, rng: Random) -> bytes:
    """Joins the beginning of one message with the end of another."""
    return one[: rng.randrange(len(one) + 1)] + other[rng.randrange(len(other) + 1) :]


def split(data: bytes, rng: Random) -> list[bytes]:
    """Splits bytes into one to five pieces."""
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 1, 2, 4))))
    edges = [0, *places, len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    return [piece for piece in pieces if piece]
