from __future__ import annotations

import io
import logging
import subprocess
import sys

import orjson
import pytest

from fastovms.telemetry.log_format import form_in_use, level_named, log_handler, timestamp

FORGED = "2026-01-01 00:00:00,000 ERROR fastovms.app: all is lost"
HOSTILE = [f"a{end}{FORGED}" for end in ("\n", "\r", "\r\n", "\x85", "\u2028", "\x0b", "\x1b[2K\r")]


@pytest.fixture
def logged():
    """Logs by a function that is given a logger, and returns the text of the log."""
    stream = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(log_handler(logging.StreamHandler(stream)))

    def log(write) -> str:
        write(logger)
        return stream.getvalue()

    return log


def fail(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError as error:
        error.add_note(text)
        raise RuntimeError(text) from error


@pytest.mark.parametrize("text", HOSTILE)
def test_a_message_is_one_line(logged, text):
    [line] = logged(lambda logger: logger.error("response %s is not kept", text)).splitlines()
    assert line.count("ERROR") == 2
    assert line.isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_the_lines_of_a_traceback_are_indented(logged, text):
    def write(logger: logging.Logger) -> None:
        try:
            fail(text)
        except RuntimeError:
            logger.exception("request failed", stack_info=True)

    first, *rest = logged(write).splitlines()
    assert "request failed" in first
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_message_with_surrogates_is_escaped(logged):
    assert logged(lambda logger: logger.error("bad %s", "\ud800")).endswith("bad \\ud800\n")


def test_a_message_without_end_is_cut(logged):
    assert len(logged(lambda logger: logger.error("bad %s", "x" * 10**6))) < 3000


def test_the_time_is_that_of_the_access_log(logged):
    """RFC 3339, in UTC, wherever the machine is."""
    record = logging.LogRecord("a", logging.INFO, "", 0, "b", (), None)
    record.created = 1_700_000_000.5
    line = logged(lambda logger: logger.handle(record))
    assert line == "2023-11-14T22:13:20.500Z INFO a: b\n"
    assert timestamp(1_700_000_000.0) == "2023-11-14T22:13:20.000Z"


def test_json_form_has_the_members_of_a_record():
    def write(logger: logging.Logger) -> None:
        try:
            fail(HOSTILE[0])
        except RuntimeError:
            logger.exception("request %s failed", HOSTILE[-1], stack_info=True)

    stream = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(log_handler(logging.StreamHandler(stream), "json"))
    write(logger)
    [line] = stream.getvalue().splitlines()
    assert line.isprintable()
    members = orjson.loads(line)
    assert members["level"] == "ERROR"
    assert members["logger"] == "test"
    assert members["message"] == f"request {HOSTILE[-1]} failed"
    assert FORGED in members["exception"]
    assert "Stack" in members["stack"]
    assert members["time"].endswith("Z")


def test_the_form_in_use_is_that_of_the_handlers(monkeypatch):
    root = logging.getLogger()
    for form in ("text", "json"):
        monkeypatch.setattr(root, "handlers", [log_handler(logging.StreamHandler(), form)])
        assert form_in_use() == form


_LEVELS = """
import logging, sys
from fastovms.telemetry.log_format import level_in_use, start_log

start_log(logging.StreamHandler(), sys.argv[1])
names = ("fastovms.app.loading", "numba.core")
print(level_in_use(), *(logging.getLogger(name).getEffectiveLevel() for name in names))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "levels"), [("DEBUG", [10, 10, 20]), ("INFO", [20] * 3), ("ERROR", [40] * 3)]
)
def test_libraries_log_from_level_info_upwards(level, levels):
    """In a process of its own, since a log is set up once."""
    run = subprocess.run(
        [sys.executable, "-c", _LEVELS, level], capture_output=True, check=True, text=True
    )
    assert [int(word) for word in run.stdout.split()] == levels


def test_level_named_trace_is_debug() -> None:
    assert [level_named(name) for name in ("trace", "debug", "warning")] == [
        "DEBUG",
        "DEBUG",
        "WARNING",
    ]
