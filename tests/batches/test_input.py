"""Tests of `fastovms/parts/batches/input.py`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fastovms.errors import MalformedBody
from fastovms.parts.batches import input, records
from fastovms.parts.batches.input import (
    CheckedInput,
    InputChecker,
    InputRules,
    LineSlots,
    Pace,
    Stopped,
    check_input,
)

# Lines take turns within a limit that may change.


MB = 1024 * 1024


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_line_slots_follow_a_changed_limit() -> None:
    limit = 2
    slots = LineSlots(lambda: limit)
    tasks = [asyncio.ensure_future(slots.acquire(1)) for _ in range(6)]
    await settle()
    assert [task.done() for task in tasks] == [True] * 2 + [False] * 4
    limit = 1
    slots.release(1)
    await settle()
    assert slots.num_used == 1
    limit = 4
    slots.release(1)
    await settle()
    assert [task.done() for task in tasks] == [True] * 6
    assert slots.num_used == 4


async def test_large_line_makes_the_next_line_wait() -> None:
    slots = LineSlots(lambda: 100)
    await slots.acquire(100 * MB)
    waiting = asyncio.ensure_future(slots.acquire(1))
    await settle()
    assert not waiting.done()
    slots.release(100 * MB)
    await waiting


async def test_cancelled_waiter_passes_its_slot_on() -> None:
    slots = LineSlots(lambda: 1)
    await slots.acquire(1)
    tasks = [asyncio.ensure_future(slots.acquire(1)) for _ in range(4)]
    await settle()
    tasks[0].cancel()  # before its turn
    tasks[1].cancel()
    slots.release(1)  # in the same pass
    await settle()
    assert tasks[2].done()
    slots.release(1)  # the turn of the last one comes,
    tasks[3].cancel()  # and it is cancelled before it knows
    await settle()
    assert slots.num_used == 0
    assert [task.cancelled() for task in tasks] == [True, True, False, True]


# Long work in a thread pauses by steps and by bytes, and stops on request.


@pytest.mark.parametrize(
    ("sizes", "num_rests"), [([1] * 31, 0), ([1] * 64, 2), ([100_000] * 4, 2), ([10**6] * 3, 3)]
)
def test_slow_pace_rests_after_many_lines_or_bytes(monkeypatch, sizes, num_rests: int) -> None:
    rests: list[float] = []
    monkeypatch.setattr(input.time, "sleep", rests.append)
    for pace in (Pace(), Pace(0.25)):
        for size in sizes:
            pace.spend(size)
    assert rests == [0.25] * num_rests


def test_check_rests_at_every_pass_over_the_lines(tmp_path, monkeypatch) -> None:
    """A second pass finds the lines whose ids have equal hashes."""
    rests: list[float] = []
    monkeypatch.setattr(input.time, "sleep", rests.append)
    check(tmp_path, *(line(str(id)) for id in range(100)), pace=Pace(0.5))
    assert rests == [0.5] * 3
    check(tmp_path, *(line(str(id % 99)) for id in range(100)), pace=Pace(0.5))
    assert rests == [0.5] * 9


# Inputs are validated completely before any line runs.


URL = "/v1/x"


def line(custom_id: object = "a", **fields: object) -> str:
    whole = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"model": "m"}}
    return json.dumps({**whole, **fields})


MODELS = {"m": "m", "alias": "m", None: "m", "n": "n"}
RULES = InputRules(URL, {URL, "/v1/y"}.__contains__, lambda name, url: MODELS.get(name), 100)


def check(path: Path, *lines: str | bytes, pace: Pace | None = None, **rules) -> CheckedInput:
    content = (line if isinstance(line, bytes) else line.encode() for line in lines)
    (path / "in").write_bytes(b"\n".join(content))
    return check_input(path / "in", replace(RULES, **rules), pace or Pace())


def test_valid_lines_are_counted_without_errors(tmp_path) -> None:
    lines = [line("a"), "", line("b", body={"model": "alias"}), line("c", body={}), " "]
    checked = check(tmp_path, *lines)
    assert checked.errors == []
    assert (checked.num_requests, checked.last_line, checked.model) == (3, 4, "m")
    assert checked.digest != check(tmp_path, *lines[1:]).digest
    both = check(tmp_path, line("a"), line("b", url="/v1/y", body={"model": "n"}), endpoint=None)
    assert both.errors == []


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[]", "invalid_json_line", None),
        ("[" * 100_000, "invalid_json_line", None),
        (b'{"model":"\xff"}', "invalid_json_line", None),
        (b'{"custom_id":"b","stream":"\xff"}', "invalid_json_line", None),
        (b'{"custom_id":"b","prompt":"\xed\xa0\x80"}', "invalid_json_line", None),
        (line(None), "missing_required_parameter", "custom_id"),
        (line(method=None), "missing_required_parameter", "method"),
        (line(url=None), "missing_required_parameter", "url"),
        (line(body=None), "missing_required_parameter", "body"),
        (line(""), "invalid_custom_id", "custom_id"),
        (line(5), "invalid_custom_id", "custom_id"),
        (line("x" * 513), "invalid_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/files"), "invalid_url", "url"),
        (line(url="/v1/y"), "mismatched_url", "url"),
        (line(body=[]), "invalid_body", "body"),
        (line(body={"model": 5}), "invalid_model", "body.model"),
        (line(body={"model": "o"}), "model_not_found", "body.model"),
        (line(body={"model": "n"}), "mismatched_model", "body.model"),
    ],
)
def test_input_fault_has_its_line_number(tmp_path, bad, code, param) -> None:
    [error] = check(tmp_path, line("z"), "", bad).errors
    assert (error.code, error.param, error.line) == (code, param, 3)
    assert len(error.message) < 200


def test_repeated_ids_are_errors_of_the_later_lines(tmp_path) -> None:
    lines = [line(f"{number % 90}") for number in range(100)]
    errors = check(tmp_path, *lines).errors
    assert [error.line for error in errors] == list(range(91, 101))
    assert {error.code for error in errors} == {"duplicate_custom_id"}


def test_empty_or_too_large_input_has_an_error(tmp_path, monkeypatch) -> None:
    assert [error.code for error in check(tmp_path).errors] == ["empty_file"]
    lines = [line(str(number)) for number in range(5)]
    [error] = check(tmp_path, *lines, max_lines=4).errors
    assert error.code == "too_many_requests"
    assert check(tmp_path, *lines, max_lines=5).errors == []
    assert len(check(tmp_path, *(["{"] * 300), max_lines=1000).errors) == input.MAX_ERRORS
    assert len(check(tmp_path, *([line()] * 99)).errors) == 98
    for module in (records, input):
        monkeypatch.setattr(module, "MAX_LINE", 50)
    assert {error.code for error in check(tmp_path, *lines).errors} == {"line_too_long"}


@pytest.mark.parametrize("lines", [[line(), ""], [""] * 6], ids=["requests", "blank lines"])
def test_stopped_check_ends_early(tmp_path, lines: list[str]) -> None:
    stopped = Pace()
    stopped.stop()
    with pytest.raises(Stopped):
        check(tmp_path, *lines, pace=stopped)


def test_input_with_too_many_lines_is_read_no_further(tmp_path) -> None:
    errors = check(tmp_path, *[line()] * 50, max_lines=3).errors
    assert [(error.code, error.line) for error in errors] == [
        ("too_many_requests", None),
        ("duplicate_custom_id", 2),
        ("duplicate_custom_id", 3),
    ]


@pytest.mark.parametrize("value", ["x" * 200, "["], ids=["long", "deep"])
def test_heavy_line_is_weighed_before_it_is_decoded(tmp_path, monkeypatch, value: str) -> None:
    def weigh(content: bytes) -> None:
        weighed.append(content)
        raise MalformedBody("too heavy")

    weighed: list[bytes] = []
    heavy = line("b", body={"model": "m", "prompt": value})
    if value == "[":
        heavy = heavy.replace('"["', "[" * 950 + "]" * 950)
    else:
        monkeypatch.setattr(input, "_WEIGHED", 200)
    errors = check(tmp_path, line("a"), heavy, line("a"), weigh=weigh).errors
    assert [(error.line, error.message) for error in errors] == [
        (2, "too heavy"),
        (3, "custom_id: an earlier line has a too"),
    ]
    assert weighed == [heavy.encode()]


# Inputs are validated one at a time, in threads for which nothing has to wait.


class Checks:
    """Validations that run until each may end or is stopped."""

    def __init__(self) -> None:
        self.begun: list[threading.Thread] = []
        self.may_end = threading.Event()
        self.num_stopped = 0

    def check(self, path, rules: InputRules, pace: Pace) -> CheckedInput:
        self.begun.append(threading.current_thread())
        while not self.may_end.is_set():
            try:
                pace.spend(1)
            except Stopped:
                self.num_stopped += 1
                raise
            time.sleep(0.001)
        return CheckedInput()

    async def have_begun(self, count: int) -> None:
        while len(self.begun) < count:  # noqa: ASYNC110 (threads begin)
            await asyncio.sleep(0.001)


@pytest.fixture
def checks(monkeypatch) -> Checks:
    checks = Checks()
    monkeypatch.setattr(input, "check_input", checks.check)
    return checks


@pytest.mark.slow
async def test_inputs_are_checked_one_at_a_time_apart_from_other_work(tmp_path, checks) -> None:
    checker = InputChecker()
    tasks = [asyncio.ensure_future(checker.check(tmp_path, RULES)) for _ in range(100)]
    await checks.have_begun(1)
    await asyncio.sleep(0.01)
    assert len(checks.begun) == 1
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(lambda: 5) == 5
    checks.may_end.set()
    await asyncio.gather(*tasks)
    assert len(checks.begun) == 100


async def test_cancelled_check_ends_its_thread(tmp_path, checks) -> None:
    checker = InputChecker()
    task = asyncio.ensure_future(checker.check(tmp_path, RULES))
    await checks.have_begun(1)
    assert checks.begun[0].daemon
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(checks.begun[0].join, 60)
    assert checks.num_stopped == 1
    checks.may_end.set()
    await checker.check(tmp_path, RULES)
