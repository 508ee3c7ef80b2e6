from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import time

import pytest

from fastovms.errors import ConfigurationError
from fastovms.service.log_writer import LineWriter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_until(read, pattern):
    end = time.monotonic() + 60
    while not re.search(pattern, text := read(), re.DOTALL):
        assert time.monotonic() < end, text
        time.sleep(0.01)


def test_terminal_shows_a_bar_below_the_log_while_the_server_is_busy(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    log = LineWriter()
    with log.busy():
        log.write_line("one")
        wait_until(terminal.getvalue, r"one\n\[ *### *\] \d+ s$")
        log.write_line("two")
        wait_until(terminal.getvalue, r"one\n.* s\r\x1b\[Ktwo\n\[ *### *\] \d+ s$")
    log.write_line("three")
    log.close(60)
    assert terminal.getvalue().endswith("\r\x1b[Kthree\n")


def test_log_file_has_no_bar(tmp_path):
    log = LineWriter(tmp_path / "log")
    with log.busy():
        log.write_line("one")
    log.close(60)
    assert (tmp_path / "log").read_text() == "one\n"


def test_lines_are_appended_in_order(tmp_path):
    path = tmp_path / "log"
    path.write_text("old\n")
    writer = LineWriter(path)
    for number in range(100):
        writer.write_line(str(number))
    writer.write_line("bad\ud800")
    writer.close(60)
    assert path.read_text().split() == ["old", *map(str, range(100)), "bad\\ud800"]


def test_log_of_another_logger_goes_to_stderr(capfd):
    writer = LineWriter()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(writer))
    logger.warning("a warning")
    writer.close(60)
    assert capfd.readouterr().err == "a warning\n"


@pytest.mark.slow
def test_log_that_is_not_read_does_not_block_writers(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe, os.fdopen(reading, "rb") as reader:
        monkeypatch.setattr(sys, "stderr", pipe)
        writer = LineWriter(max_lines=100)
        for _ in range(50):  # far more than a pipe holds
            for _ in range(100):
                writer.write_line("x" * 1000)
            time.sleep(0.005)
        reads = threading.Thread(target=lambda: reads_lines.extend(reader))
        reads_lines: list[bytes] = []
        reads.start()
        writer.close(60)
        pipe.close()
        reads.join()
    assert any(b"log lines were dropped" in line for line in reads_lines)
    assert all(line == b"x" * 1000 + b"\n" or b"dropped" in line for line in reads_lines)


def test_reopened_log_writes_to_a_new_file(tmp_path):
    path = tmp_path / "log"
    writer = LineWriter(path)
    writer.write_line("before")
    wait_until(path.read_text, "before")
    path.rename(tmp_path / "log.1")
    writer.reopen()
    writer.reopen()
    writer.write_line("after")
    writer.close(60)
    assert (tmp_path / "log.1").read_text() == "before\n"
    assert path.read_text() == "after\n"


def test_log_file_that_cannot_be_opened_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot write the log .*: Is a directory"):
        LineWriter(tmp_path)
    path = tmp_path / "folder" / "log"
    path.parent.mkdir()
    writer = LineWriter(path)
    writer.write_line("1")
    wait_until(path.read_text, "1")
    path.rename(tmp_path / "log")
    path.parent.rmdir()
    with pytest.raises(ConfigurationError):
        writer.reopen()
    writer.write_line("2")
    writer.close(60)
    assert (tmp_path / "log").read_text() == "1\n2\n"


def test_thread_that_cannot_start_is_started_with_the_next_line(tmp_path, monkeypatch):
    start, failures = threading.Thread.start, []

    def fail(thread: threading.Thread) -> None:
        if not failures:
            failures.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    writer = LineWriter(tmp_path / "log")
    with pytest.raises(RuntimeError):
        writer.write_line("first")
    writer.write_line("second")
    writer.close(60)
    assert (tmp_path / "log").read_text() == "first\nsecond\n"
