from __future__ import annotations

import pytest

from bench.endurance.http_attack.answers import AnswerReader, MalformedAnswer

DATE = b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
OK = b"HTTP/1.1 200 OK\r\n" + DATE + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\n" + DATE + b"Transfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n"
)
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n" + DATE + b"Allow: GET\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\n" + DATE + b"Connection: close\r\n\r\nrest"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"

WELL_FORMED = [
    (OK, [(200, b"hello")]),
    (CHUNKED, [(200, b"hello0123456789")]),
    (NO_CONTENT + OK, [(204, b""), (200, b"hello")]),
    (INTERIM + OK + CHUNKED, [(200, b"hello"), (200, b"hello0123456789")]),
    (OK + TO_THE_END, [(200, b"hello"), (200, b"rest")]),
]

MALFORMED = [
    b"hello",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",  # no date
    b"HTTP/1.1 200 OK\r\n" + DATE + b"\r\n",  # no framing
    b"HTTP/1.1 200 OK\r\n" + DATE + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    b"HTTP/1.1 200 OK\r\n" + DATE + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + DATE + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + DATE + b"X: a\nb\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 999 No\r\n" + DATE + b"Content-Length: 0\r\n\r\n",
    OK + b"more",
    CHUNKED.replace(b"hello\r\n", b"hello!\r\n"),
    CHUNKED.replace(b"A\r\n", b"0xA\r\n"),
]

CUT = [OK[:-1], CHUNKED[:-2], b"HTTP/1.1 200", OK + b"HTTP/"]


@pytest.mark.parametrize(("data", "expected"), WELL_FORMED)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_answers_are_read_in_any_pieces(
    data: bytes, expected: list[tuple[int, bytes]], size: int
) -> None:
    reader = AnswerReader()
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    reader.end()
    assert [(answer.status, answer.body) for answer in reader.answers] == expected


@pytest.mark.parametrize("data", MALFORMED)
def test_malformed_framing_is_found(data: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        AnswerReader().feed(data)


@pytest.mark.parametrize("data", CUT)
def test_an_answer_that_is_cut_is_found(data: bytes) -> None:
    reader = AnswerReader()
    reader.feed(data)
    with pytest.raises(MalformedAnswer):
        reader.end()
