"""Tests of `fastovms/parts/batches/runner.py`."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import orjson
import pytest

from fastovms.http.gates import KeyLimits
from fastovms.http.messages import Request, Response
from fastovms.http.routing import Router
from fastovms.params import LOWEST_PRIORITY
from fastovms.parts.batches import records
from fastovms.parts.batches import runner as line_runner
from fastovms.parts.batches.endpoints import refuse_line
from fastovms.parts.batches.input import InputChecker, InputRules, LineSlots
from fastovms.parts.batches.records import (
    BatchLine,
    BatchRecord,
    BatchStatus,
    LineAnswer,
    ResultLog,
    ResultPaths,
    RetryLater,
    parse_line,
)
from fastovms.parts.batches.runner import (
    MAX_IDLE_STARTS,
    BatchParts,
    BatchRun,
    LineCaller,
    LineRunner,
)
from fastovms.parts.batches.store import FileRecord, FileStore
from fastovms.parts.limits import KeyBudgets
from fastovms.server_config import FilesConfig
from fastovms.system.threads import DiskThreads
from tests.batches.test_records import new_record

# Lines are sent like requests, and again after a refusal for lack of room.


def line(url: str = "/v1/x", **body: object) -> BatchLine:
    whole = {"custom_id": "a", "url": url, "body": body}
    return parse_line(orjson.dumps(whole))


class Site:
    def __init__(self, *answers: Response) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.router = Router()
        self.router.add("POST", "/v1/x", self.answer)
        self.router.add("POST", "/v1/plain", lambda request: Response(204))

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        return self.answers.pop(0)

    def caller(self, **options) -> LineCaller:
        return LineCaller(self.router, lambda: "id", refuse_line, **options)


async def test_line_is_sent_as_a_request_of_its_tenant() -> None:
    site = Site(Response(200, b"{}"))
    assert await site.caller().ask(line(n=1), "tenant") == (200, "id", b"{}")
    [request] = site.requests
    assert (request.method, request.route, request.body) == ("POST", "/v1/x", b'{"n":1}')
    assert (request.caller.tenant, request.caller.priority) == ("tenant", LOWEST_PRIORITY)
    assert not request.caller.is_admin
    assert not request.is_local
    assert (await site.caller().ask(line("/v1/plain"), "")).body == b"null"


FORBIDDEN = "stream must not be true in a batch"


@pytest.mark.parametrize(
    ("asked", "status", "error"),
    [
        (line("/v3/x", stream=True), 412, FORBIDDEN),
        (line("/v1/messages", stream=True), 400,
         {"type": "invalid_request_error", "message": FORBIDDEN}),
        (line(stream=True), 400, {"message": FORBIDDEN, "type": "invalid_request_error",
                                  "param": "stream", "code": None}),
        (line(background=True), 400, {"message": FORBIDDEN.replace("stream", "background"),
                                      "type": "invalid_request_error", "param": "background",
                                      "code": None}),
    ],
)  # fmt: skip
async def test_unsupported_line_is_refused_in_the_form_of_its_path(asked, status, error) -> None:
    answer = await Site().caller().ask(asked, "")
    assert (answer.status, orjson.loads(answer.body)["error"]) == (status, error)


async def test_line_counts_against_the_limits_of_its_key() -> None:
    site = Site(Response(200, b"{}"))
    budget = KeyBudgets(float)
    budget.set_limits({"tenant": KeyLimits(1)})
    await site.caller(find_budget=budget.find).ask(line(), "tenant")
    assert site.requests[0].caller.budget is budget.find("tenant") is not None


async def test_line_of_an_unknown_path_is_refused() -> None:
    answer = await Site().caller().ask(line("/v1/y"), "")
    assert answer.status == 404
    assert b"no such path" in answer.body


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, (("Retry-After", "7"),), 7.0),
        (503, (("Retry-After", "700"),), 60.0),
        (503, (), 1.0),
    ],
)
async def test_unavailable_answer_is_asked_again_later(status, headers, seconds) -> None:
    site = Site(Response(status, headers=headers))
    assert await site.caller().ask(line(), "") == RetryLater(seconds)


async def test_answer_of_a_failed_engine_is_asked_again() -> None:
    site = Site(Response(500, b"{}"), Response(500, b"{}"))
    assert (await site.caller().ask(line(), "")).status == 500
    assert await site.caller(has_failed=lambda: True).ask(line(), "") == RetryLater(1.0)


# Every line runs once.


NUM_LINES = 300


class Work:
    """Lines that a `LineRunner` runs, with their results."""

    def __init__(self, path, slots: LineSlots) -> None:
        self.input = path / "in"
        self.threads = DiskThreads("a")
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/", "body": {}}
            for number in range(1, NUM_LINES + 1)
        ]
        self.input.write_text("\n".join(map(json.dumps, lines)))
        self.paths = ResultPaths(path / "output", path / "errors")
        self.slots = slots
        self.asked: list[str] = []
        self.is_open = True
        self.most_at_once = 0

    async def ask(self, line: BatchLine) -> LineAnswer | RetryLater:
        self.asked.append(line.custom_id)
        self.most_at_once = max(self.most_at_once, self.slots.num_used)
        await asyncio.sleep(0)
        return LineAnswer(200, "r", b"{}") if self.is_open else RetryLater(0.001)

    async def run(self) -> None:
        log = ResultLog(self.paths, "k", NUM_LINES, self.threads)
        log.open()
        await LineRunner(self.input, log, self.ask, self.slots, self.threads).run()
        await log.close()

    def results(self) -> list[str]:
        text = "".join(path.read_text() for path in self.paths)
        return sorted((json.loads(line)["custom_id"] for line in text.splitlines()), key=int)


ALL = [str(number) for number in range(1, NUM_LINES + 1)]


async def test_lines_that_wait_to_ask_again_leave_their_slots_to_other_batches(tmp_path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    slots = LineSlots(lambda: 5)
    stuck, other = Work(tmp_path / "a", slots), Work(tmp_path / "b", slots)
    stuck.is_open = False
    task = asyncio.create_task(stuck.run())
    await asyncio.wait_for(other.run(), 60)
    assert other.results() == ALL
    assert not task.done()
    assert len(set(stuck.asked)) <= 2 * 5  # no more than a few lines wait
    stuck.is_open = True
    await asyncio.wait_for(task, 60)
    assert stuck.results() == ALL
    assert slots.num_used == 0


async def test_lines_are_parsed_in_threads_and_run_in_order_within_the_slots(
    tmp_path, monkeypatch
) -> None:
    def parse(line: bytes) -> BatchLine:
        assert threading.current_thread() is not threading.main_thread()
        return parse_line(line)

    monkeypatch.setattr(line_runner, "parse_line", parse)
    work = Work(tmp_path, LineSlots(lambda: 5))
    await work.run()
    assert work.results() == work.asked == ALL
    assert work.most_at_once == 5
    assert work.slots.num_used == 0


# A batch is completed from any state.


BATCH_RUN_NUM_LINES = 40
EVERY_LINE = list(range(1, BATCH_RUN_NUM_LINES + 1))


class Server:
    """The server of a batch. Answers stop at `num_answers`, as if the process ended there."""

    def __init__(self, path) -> None:
        self.path = path
        self.now = 1000.0
        self.num_answers = 10**9
        self.asked: list[str] = []
        self.stopped = asyncio.Event()
        self.saved: list[BatchStatus] = []
        self.router = Router()
        self.router.add("POST", "/v1/x", self.answer)
        self.files = FileStore(path / "files", FilesConfig(), lambda: self.now, DiskThreads("a"))
        self.work = path / "work"
        self.work.mkdir(exist_ok=True)
        rules = InputRules("/v1/x", lambda url: True, lambda name, url: name or "m", 1000)
        caller = LineCaller(self.router, lambda: "id", refuse_line)
        slots = LineSlots(lambda: 4)
        self.parts = BatchParts(
            self.files, caller, slots, InputChecker(), lambda _: rules, lambda: self.now
        )

    async def answer(self, request: Request) -> Response:
        if len(self.asked) >= self.num_answers:
            self.stopped.set()
            await asyncio.Event().wait()
        body = json.loads(request.body)
        self.asked.append(body["n"])
        return Response(200 if body["n"] % 10 else 400, b'{"usage":{"prompt_tokens":1}}')

    async def save(self, record: BatchRecord) -> None:
        self.saved.append(record.status)

    def run(self, record: BatchRecord) -> BatchRun:
        return BatchRun(record, self.parts, self.save, self.work)

    async def add_input(self, *more: str) -> None:
        lines = [
            json.dumps({"custom_id": str(n), "method": "POST", "url": "/v1/x", "body": {"n": n}})
            for n in range(1, BATCH_RUN_NUM_LINES + 1)
        ]
        partial = self.files.new_partial()
        partial.write_text("\n".join((*lines, *more)))
        size = partial.stat().st_size
        file = FileRecord(
            id="file-in", tenant="", name="a", purpose="batch", size=size, created_at=1
        )
        await self.files.add(partial, file)

    def lines(self, id: str | None) -> list[dict]:
        text = "" if id is None else self.files.path_of(id).read_text()
        return [json.loads(line) for line in text.splitlines()]

    def results(self, record: BatchRecord) -> list[int]:
        found = self.lines(record.output_file_id) + self.lines(record.error_file_id)
        return sorted(int(line["custom_id"]) for line in found)


@pytest.fixture
async def server(tmp_path):
    server = Server(tmp_path)
    await server.add_input()
    yield server
    server.files.check()
    server.files.close()


async def test_batch_runs_to_its_end(server) -> None:
    record = new_record(output_age=3600)
    await server.run(record).drive()
    assert record.status is BatchStatus.COMPLETED
    assert (record.total, record.completed, record.failed) == (BATCH_RUN_NUM_LINES, 36, 4)
    assert record.usage.input_tokens == 36
    assert server.results(record) == EVERY_LINE == sorted(server.asked)
    file = server.files.find("", record.output_file_id)
    assert (file.purpose, file.expires_at) == ("batch_output", 4600)
    assert not list(server.work.iterdir())
    assert server.saved[0] is BatchStatus.IN_PROGRESS
    assert server.saved[-2:] == [BatchStatus.FINALIZING, BatchStatus.COMPLETED]


async def cut(server: Server, record: BatchRecord, num_answers: int) -> None:
    """Ends the process after the given number of answers."""
    server.num_answers = num_answers
    server.stopped.clear()
    task = asyncio.ensure_future(server.run(record).drive())
    await server.stopped.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_batch_goes_on_after_several_ends_of_the_process(server) -> None:
    record = new_record()
    for num_answers in (5, 15, 25):
        await cut(server, record, num_answers)
    server.num_answers = 10**9
    await server.run(record).drive()
    assert record.status is BatchStatus.COMPLETED
    assert server.results(record) == EVERY_LINE
    assert (record.completed, record.failed) == (36, 4)


async def test_batch_that_ends_every_process_fails(server) -> None:
    record = new_record()
    for _ in range(MAX_IDLE_STARTS):
        await cut(server, record, 0)
    await asyncio.wait_for(server.run(record).drive(), 60)
    assert record.status is BatchStatus.FAILED
    assert "the server has ended 5 times" in record.errors[0].message
    assert record.output_file_id is record.error_file_id is None


async def test_failed_batch_keeps_completed_lines(server) -> None:
    record = new_record()
    await cut(server, record, 15)
    num_done = len(server.asked)
    for _ in range(MAX_IDLE_STARTS):
        await cut(server, record, num_done)
    await asyncio.wait_for(server.run(record).drive(), 60)
    assert record.status is BatchStatus.FAILED
    assert server.results(record) == sorted(server.asked)
    assert len(server.asked) == num_done > 0
    assert record.completed + record.failed == num_done
    assert not list(server.work.iterdir())


@pytest.mark.parametrize("is_wrong", [False, True])
async def test_end_of_a_batch_is_visible_after_it_is_stored(
    server, monkeypatch, is_wrong: bool
) -> None:
    monkeypatch.setattr(records, "_RETRY_DELAY", 0.0)
    record, seen = new_record(), []
    save = server.save

    async def fail_twice(saved: BatchRecord) -> None:
        if saved.has_ended and len(seen) < 2:
            seen.append(record.status)
            raise OSError("full")
        await save(saved)

    if is_wrong:
        await server.files.delete("", "file-in")
        await server.add_input("{")
    server.save = fail_twice
    await server.run(record).drive()
    assert seen == [BatchStatus.VALIDATING if is_wrong else BatchStatus.FINALIZING] * 2
    assert server.saved[-1] is record.status
    assert record.status is (BatchStatus.FAILED if is_wrong else BatchStatus.COMPLETED)
    errors = [(error.line, error.code) for error in record.errors]
    assert errors == [(41, "invalid_json_line")] * is_wrong
    assert (server.asked == []) == (record.output_file_id is None) == is_wrong


@pytest.mark.parametrize("cancels", [True, False])
async def test_batch_that_ends_early_has_a_result_for_every_line(server, cancels: bool) -> None:
    server.num_answers = 10
    record = new_record(expires_at=1000 if not cancels else 5000)
    if not cancels:
        server.num_answers = 0
    run = server.run(record)
    task = asyncio.ensure_future(run.drive())
    if cancels:
        await server.stopped.wait()
        await run.cancel()
    await task
    code = "batch_cancelled" if cancels else "batch_expired"
    assert record.status == code.removeprefix("batch_")
    assert server.results(record) == EVERY_LINE
    told = [line["error"]["code"] for line in server.lines(record.error_file_id) if line["error"]]
    assert set(told) == {code}
    assert len(told) >= BATCH_RUN_NUM_LINES - 10
    assert record.completed + record.failed == BATCH_RUN_NUM_LINES


async def test_cancel_that_is_not_stored_stops_the_lines(server) -> None:
    async def fail_to_cancel(saved: BatchRecord) -> None:
        if saved.status is BatchStatus.CANCELLING and not server.saved.count(saved.status):
            server.saved.append(saved.status)
            raise OSError("full")
        await save(saved)

    save, server.save = server.save, fail_to_cancel
    server.num_answers = 10
    record = new_record()
    run = server.run(record)
    task = asyncio.ensure_future(run.drive())
    await server.stopped.wait()
    with pytest.raises(OSError, match="full"):
        await run.cancel()
    async with asyncio.timeout(60):
        await task
    assert record.status is server.saved[-1] is BatchStatus.CANCELLED
    assert server.results(record) == EVERY_LINE


async def test_cancelling_batch_is_cancelled_by_the_next_process(server) -> None:
    record = new_record()
    await cut(server, record, 5)
    record.enter(BatchStatus.CANCELLING, 1000)
    record.outcome = BatchStatus.CANCELLED
    await server.run(record).drive()
    assert record.status is BatchStatus.CANCELLED
    assert server.results(record) == EVERY_LINE
    unchecked = new_record(
        id=f"batch_{'cd' * 16}",
        output_id="file-none",
        error_id="file-none",
        status=BatchStatus.CANCELLING,
        outcome=BatchStatus.CANCELLED,
    )
    await server.run(unchecked).drive()
    assert unchecked.status is BatchStatus.CANCELLED
    assert unchecked.error_file_id is None


async def test_batch_resumed_while_finalizing_has_the_same_results(server) -> None:
    record = new_record()
    await server.run(record).drive()
    record.status = BatchStatus.FINALIZING  # the last record was not written yet
    record.output_file_id = record.error_file_id = None
    await server.run(record).drive()
    assert server.results(record) == EVERY_LINE


async def test_batch_retries_while_the_disk_fails(server, monkeypatch, caplog) -> None:
    monkeypatch.setattr(records, "_RETRY_DELAY", 0.0)
    record = new_record()
    faults = [OSError("full"), OSError("full")]
    add = server.files.add

    async def fail(partial, file) -> None:
        if faults:
            raise faults.pop()
        await add(partial, file)

    monkeypatch.setattr(server.files, "add", fail)
    await server.run(record).drive()
    assert record.status is BatchStatus.COMPLETED
    assert "is interrupted, will retry: full" in caplog.text
    assert server.results(record) == EVERY_LINE


@pytest.mark.parametrize("num_answers", [None, 15])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_batch_whose_input_is_gone_ends_with_its_results(
    server, num_answers, is_cancelled: bool
) -> None:
    record = new_record()
    if num_answers is not None:
        await cut(server, record, num_answers)
    server.files.path_of("file-in").unlink()
    run = server.run(record)
    if is_cancelled:
        await run.cancel()
    async with asyncio.timeout(60):
        await run.drive()
    status = BatchStatus.CANCELLED if is_cancelled else BatchStatus.FAILED
    assert record.status is server.saved[-1] is status
    errors = [(error.code, error.param) for error in record.errors]
    has_error = not is_cancelled or num_answers is not None
    assert errors == [("input_file_not_found", "input_file_id")] * has_error
    assert not errors or "input file file-in is gone" in record.errors[0].message
    assert server.results(record) == sorted(server.asked)
    assert record.failed_at == (None if is_cancelled else 1000)


@pytest.mark.parametrize("place", ["validate", "line", "finalize"])
async def test_unexpected_fault_fails_the_batch(server, monkeypatch, place: str) -> None:
    async def fail(*_) -> None:
        raise ZeroDivisionError("odd")

    async def fail_late(request: Request) -> Response:
        if len(server.asked) >= 15:
            await fail()
        return await answer(request)

    answer, record = server.answer, new_record()
    if place == "line":
        server.router = Router()
        server.router.add("POST", "/v1/x", fail_late)
        caller = LineCaller(server.router, lambda: "id", refuse_line)
        server.parts = replace(server.parts, caller=caller)
    elif place == "finalize":
        monkeypatch.setattr(server.files, "add", fail)
    else:
        monkeypatch.setattr(server.parts.checker, "check", fail)
    await server.run(record).drive()
    assert record.status is server.saved[-1] is BatchStatus.FAILED
    [error] = record.errors
    assert error.code == "server_error"
    assert error.message.endswith("internal server error (ZeroDivisionError)")
    kept = sorted(server.asked) if place == "line" else []
    assert server.results(record) == kept


async def test_cancelled_batch_ends_when_no_file_can_be_written(
    server, monkeypatch, caplog
) -> None:
    async def fail(*_) -> None:
        storing_failed.set()
        raise OSError("full")

    storing_failed = asyncio.Event()
    record = new_record()
    run = server.run(record)
    monkeypatch.setattr(run, "_run_lines", fail)
    task = asyncio.ensure_future(run.drive())
    await storing_failed.wait()
    monkeypatch.setattr(records, "_RETRY_DELAY", 0.0)
    await run.cancel()
    async with asyncio.timeout(60):
        await task
    assert record.status is BatchStatus.CANCELLED
    assert [error.message for error in record.errors] == ["the batch could not go on: full"]
    assert caplog.text.count("is interrupted") == 1 + records._MAX_RETRIES
