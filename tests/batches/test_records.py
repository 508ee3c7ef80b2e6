"""Tests of `fastovms/parts/batches/records.py`."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest

from fastovms.errors import ConfigurationError, EngineFailed
from fastovms.parts.batches import records
from fastovms.parts.batches.records import (
    CANCELLED,
    EXPIRED,
    BatchFaults,
    BatchLine,
    BatchRecord,
    BatchStatus,
    BatchUsage,
    LineAnswer,
    ResultLog,
    ResultPaths,
    answer_line,
    is_utf8,
    open_output,
    parse_line,
    read_lines,
    skipped_line,
    usage_of,
)
from fastovms.system.threads import DiskThreads

# The formats of a batch's lines and results.


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
def test_lines_are_numbered_without_blank_ones_and_cut_at_max_line(
    content, lines, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(records, "MAX_LINE", 10)
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
def test_parsed_line_names_the_field_that_batches_forbid(
    body: bytes, forbidden: str | None
) -> None:
    line = b'{"custom_id":"a","method":"POST","url":"/x","body":' + body + b"}"
    assert parse_line(line) == BatchLine("a", "/x", body, forbidden)


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 6, 8])
def test_utf8_is_checked_piece_by_piece(monkeypatch, cut: int) -> None:
    monkeypatch.setattr(records, "_PIECE", 3)
    text = "aé\u20ac\U0001f600b".encode()
    assert is_utf8(text)
    assert is_utf8(text[:cut]) is (cut in (0, 1, 6))
    assert not is_utf8(text[:cut] + b"\xff" + text[cut:])


def test_result_line_has_the_response_or_the_error() -> None:
    line = answer_line("i", "c\n", LineAnswer(200, "r", b'{"a":1}'))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    response = {"status_code": 200, "request_id": "r", "body": {"a": 1}}
    assert json.loads(line) == {"id": "i", "custom_id": "c\n", "response": response, "error": None}
    told = json.loads(skipped_line("i", "c", EXPIRED))
    assert (told["response"], told["error"]["code"]) == (None, "batch_expired")


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_result_with_unicode_line_ends_is_one_line(end) -> None:
    body = json.dumps({"a": f"x{end}y"}, ensure_ascii=False).encode()
    line = answer_line("i", f"c{end}d", LineAnswer(200, "r", body)).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["custom_id"] == f"c{end}d"
    assert json.loads(line)["response"]["body"] == {"a": f"x{end}y"}


def test_many_blank_lines_are_counted_with_few_reads(tmp_path) -> None:
    path, reads = tmp_path / "in", []
    path.write_bytes(b"a\n" + b"\n \r\n\t\n" * 100_000 + b"  b\n\n\n" + b" " * 200_000 + b"\nc")
    found = list(read_lines(path, reads.append))
    assert found == [(1, b"a"), (300_002, b"b"), (300_006, b"c")]
    assert len(reads) < 30
    assert sum(reads) == path.stat().st_size


# The record of a batch is restored from JSON.


def new_record(**fields) -> BatchRecord:
    return BatchRecord(
        **{
            "id": f"batch_{'ab' * 16}",
            "tenant": "",
            "endpoint": "/v1/x",
            "input_file_id": "file-in",
            "completion_window": "24h",
            "created_at": 1000,
            "expires_at": 5000,
            "output_id": "file-out",
            "error_id": "file-err",
            **fields,
        }
    )


# The state of a batch that failed, and the errors that clients get.


GROUP = ExceptionGroup("lines", [ExceptionGroup("one", [OSError("full")]), ValueError("b")])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("full"), "full"),
        (EngineFailed("it hangs"), "it hangs"),
        (ZeroDivisionError("secret"), "internal server error (ZeroDivisionError)"),
        (GROUP, "full"),
    ],
)
def test_fault_of_the_server_is_reported_without_secrets(
    folder, error: Exception, told: str
) -> None:
    record = new_record()
    BatchFaults(record, folder).fail_with(error)
    [fault] = record.errors
    assert fault.code == "server_error"
    assert fault.message == f"the batch could not go on: {told}"


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def path_of(self, id: str) -> Path:
        return self.path / id


@pytest.fixture
def folder(tmp_path) -> Folder:
    (tmp_path / "file-in").touch()
    return Folder(tmp_path)


def test_passing_faults_depend_on_phase_and_input(folder) -> None:
    record = new_record()
    faults = BatchFaults(record, folder)
    assert faults.is_passing(OSError("full"))
    assert not faults.is_passing(ValueError("b"))
    folder.path_of("file-in").unlink()
    assert not faults.is_passing(OSError("full"))
    record.status = BatchStatus.FINALIZING
    assert faults.is_passing(OSError("full"))


# Lines of a result file that are not results of the batch stay in the file.


KEY = "0123456789abcdef"
ANSWER = LineAnswer(200, "r", b"{}")


async def test_reopened_output_has_the_lines_that_were_written_whole(tmp_path) -> None:
    path = tmp_path / "out"
    async with open_output(path, KEY, 3, DiskThreads("a")) as log:
        log.add(2, "b", ANSWER)
        log.add(1, "a", ANSWER)
        await log.flush()
        with pytest.raises(ConfigurationError, match="another process uses it"):
            await open_output(path, KEY, 3, DiskThreads("a")).__aenter__()
    whole = path.read_bytes()
    for cut in (1, 20, len(whole.splitlines()[-1]) - 3):
        path.write_bytes(whole[:-cut])
        async with open_output(path, KEY, 3, DiskThreads("a")) as log:
            assert [log.is_done(number) for number in (1, 2, 3)] == [False, True, False]


@pytest.mark.parametrize(
    "foreign", [b"notes of somebody", b"notes of somebody\n", b'{"id":"batch_req_another', b"\n"]
)
async def test_output_with_foreign_content_is_refused_and_unchanged(tmp_path, foreign) -> None:
    path = tmp_path / "out"
    async with open_output(path, KEY, 3, DiskThreads("a")) as log:
        log.add(2, "b", ANSWER)
        await log.flush()
    content = path.read_bytes() + foreign
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"line 2 of .* does not belong"):
        await open_output(path, KEY, 3, DiskThreads("a")).__aenter__()
    assert path.read_bytes() == content


async def test_output_in_a_missing_directory_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: No such file"):
        await open_output(tmp_path / "none" / "out", KEY, 3, DiskThreads("a")).__aenter__()


# The usage of all kinds of answers is added up.


CHAT = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
RESPONSE = {
    "input_tokens": 50,
    "output_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens_details": {"reasoning_tokens": 10},
}
MESSAGE = {
    "input_tokens": 1000,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 3000,
    "output_tokens": 700,
    "output_tokens_details": {"thinking_tokens": 600},
}
EMBEDDING = {"prompt_tokens": 500, "total_tokens": 500}


def test_usage_of_all_endpoints_is_added_up() -> None:
    usage = BatchUsage()
    for given in (CHAT, RESPONSE, MESSAGE, EMBEDDING, None):
        usage.add(usage_of(json.dumps({"id": "x", "usage": given}).encode()))
    for body in (b"[]", b"{}", b"", b'{"usage":5}'):
        usage.add(usage_of(body))
    assert usage == BatchUsage(4555, 3022, 733, 611)


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("body", "is_at_end"),
    [
        ({"data": LONG, "usage": EMBEDDING}, True),
        ({"data": LONG, "usage": EMBEDDING, "a": {"b": 1, "usage": CHAT}}, True),
        ({"data": LONG, "usage": EMBEDDING, "a": ',"usage":{"prompt_tokens":1}}'}, True),
        ({"data": LONG, "usage": EMBEDDING, "a": "\\"}, True),
        ({"usage": EMBEDDING, "data": LONG}, False),
        ({"usage": EMBEDDING, "data": LONG, "b": {"a": 1, "usage": CHAT}}, False),
    ],
)
def test_usage_at_the_end_of_a_long_answer_is_read_without_the_rest(
    monkeypatch, body: dict, is_at_end: bool
) -> None:
    sizes: list[int] = []
    decode = msgspec.json.decode

    def measured(content: bytes, type: type) -> object:
        sizes.append(len(content))
        return decode(content, type=type)

    monkeypatch.setattr(records.msgspec.json, "decode", measured)
    usage = BatchUsage()
    usage.add(usage_of(json.dumps(body, separators=(",", ":")).encode()))
    assert usage.input_tokens == (500 if "usage" in body else 0)
    assert (max(sizes) < 1000) is is_at_end


# A line is done when its complete result is in a file, for any end of the process.


GOOD = LineAnswer(200, "r", b'{"usage":{"prompt_tokens":2,"completion_tokens":1}}')
BAD = LineAnswer(400, "r", b'{"error":{"message":"no"}}')


@pytest.fixture
def paths(tmp_path) -> ResultPaths:
    return ResultPaths(tmp_path / "output", tmp_path / "errors")


def opened(paths: ResultPaths, key: str = "k", last_line: int = 9) -> ResultLog:
    log = ResultLog(paths, key, last_line, DiskThreads("a"))
    log.open()
    return log


def done(log: ResultLog) -> list[int]:
    return [number for number in range(1, 10) if log.is_done(number)]


async def fill(paths: ResultPaths) -> None:
    log = opened(paths)
    log.add(9, "i", GOOD)
    log.add(1, "a", BAD)
    await log.flush()
    log.add(2, "b", GOOD)
    log.add_skipped(3, "c", CANCELLED)
    await log.flush()
    log.sync()
    await log.close()


async def test_reopened_results_have_the_lines_counts_and_usage(paths) -> None:
    await fill(paths)
    log = opened(paths)
    assert done(log) == [1, 2, 3, 9]
    assert (log.num_completed, log.num_failed, log.num_done) == (2, 2, 4)
    assert log.usage == BatchUsage(input_tokens=4, output_tokens=2)
    await log.close()
    ids = [json.loads(line)["custom_id"] for line in paths.output.read_text().splitlines()]
    assert ids == ["i", "b"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
async def test_result_line_that_was_cut_is_not_done(paths, cut: int) -> None:
    await fill(paths)
    content = paths.output.read_bytes()
    paths.output.write_bytes(content[:-cut])
    log = opened(paths)
    assert done(log) == [1, 3, 9]
    log.add(2, "b", GOOD)
    await log.flush()
    await log.close()
    assert paths.output.read_bytes() == content


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 50, b"\0" * 50 + b"\n", b"{}\n", b'{"id":"batch_req_x00000004"}\n', b"no\n"],
)
async def test_damaged_tail_of_results_is_cut(paths, tail: bytes) -> None:
    await fill(paths)
    content = paths.output.read_bytes()
    paths.output.write_bytes(content + tail)
    log = opened(paths)
    await log.close()
    assert done(log) == [1, 2, 3, 9]
    assert paths.output.read_bytes() == content


async def test_repeated_or_foreign_results_are_cut(paths) -> None:
    await fill(paths)
    content = paths.output.read_bytes()
    paths.output.write_bytes(content * 2)
    await opened(paths).close()
    assert paths.output.read_bytes() == content
    await opened(paths, last_line=8).close()
    assert paths.output.read_bytes() == b""
    await fill(paths)
    await opened(paths, key="other").close()
    assert paths.output.read_bytes() == b""


async def test_results_and_errors_may_share_a_file(tmp_path) -> None:
    paths = ResultPaths(tmp_path / "out", tmp_path / "out")
    await fill(paths)
    assert done(opened(paths)) == [1, 2, 3, 9]


async def test_answers_are_read_and_written_in_threads(paths, monkeypatch) -> None:
    """A long answer would block the event loop."""
    names: list[str] = []

    def watch(name: str) -> None:
        function = getattr(records, name)

        def watched(*arguments: object) -> object:
            assert threading.current_thread() is not threading.main_thread()
            names.append(name)
            return function(*arguments)

        monkeypatch.setattr(records, name, watched)

    watch("usage_of")
    watch("answer_line")
    log = opened(paths)
    log.add(1, "a", GOOD)
    log.add(2, "b", BAD)
    await log.flush()
    assert sorted(names) == ["answer_line", "answer_line", "usage_of"]
    assert log.usage.input_tokens == 2
    await log.close()


async def test_disk_failure_is_raised_to_all_writers(paths, monkeypatch) -> None:
    log = opened(paths)

    def fail(descriptor: int, data: bytes) -> int:
        raise OSError("full")

    monkeypatch.setattr("os.write", fail)
    log.add(1, "a", GOOD)
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            await log.flush()
    await log.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_files_are_closed_when_no_thread_writes_any_more(
    paths, monkeypatch, is_cancelled: bool
) -> None:
    begun, may_end, write = threading.Event(), threading.Event(), os.write

    def write_slowly(descriptor: int, data: bytes) -> int:
        begun.set()
        assert may_end.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr("os.write", write_slowly)
    log = opened(paths)
    log.add(1, "a", GOOD)
    flushing = asyncio.ensure_future(log.flush())
    await asyncio.to_thread(begun.wait, 60)
    flushing.cancel()
    log.add(2, "b", BAD)
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    if is_cancelled:
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
    may_end.set()
    await log.close()
    monkeypatch.undo()
    again = opened(paths)
    assert done(again) == [1, 2]
    await again.close()
