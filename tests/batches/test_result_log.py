"""A line is done when its result is in a file, whole, whatever has ended the process."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest

from fastovms.batches import result_log
from fastovms.batches.batch_line import CANCELLED, LineAnswer
from fastovms.batches.line_usage import BatchUsage
from fastovms.batches.result_log import ResultLog, ResultPaths
from fastovms.system.disk_threads import DiskThreads

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
    log.add_unasked(3, "c", CANCELLED)
    await log.flush()
    log.sync()
    await log.close()


async def test_the_next_process_knows_what_is_done(paths) -> None:
    await fill(paths)
    log = opened(paths)
    assert done(log) == [1, 2, 3, 9]
    assert (log.num_completed, log.num_failed, log.num_done) == (2, 2, 4)
    assert log.usage == BatchUsage(input_tokens=4, output_tokens=2)
    await log.close()
    ids = [json.loads(line)["custom_id"] for line in paths.output.read_text().splitlines()]
    assert ids == ["i", "b"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
async def test_a_line_that_is_cut_is_done_again(paths, cut: int) -> None:
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
async def test_what_is_no_result_is_cut_off(paths, tail: bytes) -> None:
    await fill(paths)
    content = paths.output.read_bytes()
    paths.output.write_bytes(content + tail)
    log = opened(paths)
    await log.close()
    assert done(log) == [1, 2, 3, 9]
    assert paths.output.read_bytes() == content


async def test_what_comes_twice_or_from_elsewhere_is_cut_off(paths) -> None:
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


async def test_one_file_for_both(tmp_path) -> None:
    paths = ResultPaths(tmp_path / "out", tmp_path / "out")
    await fill(paths)
    assert done(opened(paths)) == [1, 2, 3, 9]


async def test_many_at_once_are_written_together(paths) -> None:
    log = opened(paths, last_line=2000)

    async def add(number: int) -> None:
        log.add(number, str(number), GOOD)
        await log.flush()
        lines = paths.output.read_text().splitlines()
        assert str(number) in {json.loads(line)["custom_id"] for line in lines[-100:]}

    await asyncio.gather(*(add(number) for number in range(1, 50)))
    await log.close()
    assert len(paths.output.read_text().splitlines()) == 49


async def test_answers_are_looked_at_in_threads(paths, monkeypatch) -> None:
    """A long one would hold the event loop up."""
    names: list[str] = []

    def watch(name: str) -> None:
        function = getattr(result_log, name)

        def watched(*arguments: object) -> object:
            assert threading.current_thread() is not threading.main_thread()
            names.append(name)
            return function(*arguments)

        monkeypatch.setattr(result_log, name, watched)

    watch("usage_of")
    watch("answer_line")
    log = opened(paths)
    log.add(1, "a", GOOD)
    log.add(2, "b", BAD)
    await log.flush()
    assert sorted(names) == ["answer_line", "answer_line", "usage_of"]
    assert log.usage.input_tokens == 2
    await log.close()


async def test_a_disk_that_fails_is_told_to_all(paths, monkeypatch) -> None:
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
        assert may_end.wait(20)
        return write(descriptor, data)

    monkeypatch.setattr("os.write", write_slowly)
    log = opened(paths)
    log.add(1, "a", GOOD)
    flushing = asyncio.ensure_future(log.flush())
    await asyncio.to_thread(begun.wait, 20)
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
