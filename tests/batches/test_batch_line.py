"""Lines of batches, and of their results."""

from __future__ import annotations

import json

import pytest

from fastovms.batches import batch_line
from fastovms.batches.batch_line import (
    EXPIRED,
    BatchLine,
    LineAnswer,
    answer_line,
    is_utf8,
    number_of,
    parse_line,
    read_lines,
    result_id,
    unasked_line,
)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"\xef\xbb\xbfa\r\n\r\n \n\nb", [(1, b"a"), (5, b"b")]),
        (b"a\n" + b"x" * 100 + b"\nb\n", [(1, b"a"), (2, b"x" * 12), (3, b"b")]),
        (b"a\n" + b"x" * 100, [(1, b"a"), (2, b"x" * 12)]),
        (b"1234567890\nb", [(1, b"1234567890"), (2, b"b")]),
    ],
)
def test_reading(content, lines, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(batch_line, "MAX_LINE", 10)
    (tmp_path / "in").write_bytes(content)
    assert list(read_lines(tmp_path / "in")) == lines


@pytest.mark.parametrize(
    ("body", "forbidden"),
    [
        (b'{"a":1}', None),
        (b'{"stream":false,"background":null}', None),
        (b'{"stream":true}', "stream"),
        (b'{"background":true}', "background"),
        (b'{"stream":"\xff"}', None),
        (b"[]", None),
    ],
)
def test_a_request_and_what_it_must_not_ask(body: bytes, forbidden: str | None) -> None:
    line = b'{"custom_id":"a","method":"POST","url":"/x","body":' + body + b"}"
    assert parse_line(line) == BatchLine("a", "/x", body, forbidden)


@pytest.mark.parametrize("cut", range(12))
def test_utf8_is_told_piece_by_piece(monkeypatch, cut: int) -> None:
    monkeypatch.setattr(batch_line, "_PIECE", 3)
    text = "aé\u20ac\U0001f600b".encode()
    assert is_utf8(text)
    assert is_utf8(text[:cut]) is (cut in (0, 1, 3, 6, 10, 11))
    assert not is_utf8(text[:cut] + b"\xff" + text[cut:])


@pytest.mark.parametrize(
    ("id", "number"),
    [
        (result_id("k", 5), 5),
        (result_id("k", 10**9), 10**9),
        (result_id("other", 5), None),
        ("batch_req_k0000000z", None),
        ("batch_req_k00000", None),
        ("x", None),
    ],
)
def test_ids(id, number) -> None:
    assert number_of(id, "k") == number


def test_results() -> None:
    line = answer_line("i", "c\n", LineAnswer(200, "r", b'{"a":1}'))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    response = {"status_code": 200, "request_id": "r", "body": {"a": 1}}
    assert json.loads(line) == {"id": "i", "custom_id": "c\n", "response": response, "error": None}
    told = json.loads(unasked_line("i", "c", EXPIRED))
    assert (told["response"], told["error"]["code"]) == (None, "batch_expired")


@pytest.mark.parametrize(("status", "is_success"), [(200, True), (299, True), (400, False)])
def test_success(status, is_success) -> None:
    assert LineAnswer(status, "", b"").is_success is is_success


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_a_result_is_one_line_for_whatever_splits_text(end) -> None:
    body = json.dumps({"a": f"x{end}y"}, ensure_ascii=False).encode()
    line = answer_line("i", f"c{end}d", LineAnswer(200, "r", body)).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["custom_id"] == f"c{end}d"
    assert json.loads(line)["response"]["body"] == {"a": f"x{end}y"}


def test_runs_of_blank_lines_are_counted_and_read_at_once(tmp_path) -> None:
    path, reads = tmp_path / "in", []
    path.write_bytes(b"a\n" + b"\n \r\n\t\n" * 100_000 + b"  b\n\n\n" + b" " * 200_000 + b"\nc")
    found = list(read_lines(path, reads.append))
    assert found == [(1, b"a"), (300_002, b"b"), (300_006, b"c")]
    assert len(reads) < 30
    assert sum(reads) == path.stat().st_size
