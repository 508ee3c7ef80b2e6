"""Tests of `fastovms/http/parser.py`."""

from __future__ import annotations

import errno
import random
import re
from itertools import pairwise
from mmap import mmap
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastovms.config import HttpConfig
from fastovms.http.messages import Headers, Request
from fastovms.http.parser import (
    MAPPED,
    BodyBudget,
    BodyBuffer,
    Fault,
    InputRefused,
    ParserPhase,
    RequestParser,
    split_target,
    trace_context,
)
from tests.http.more_cases import CASES, Case, chunked, get, post

# Targets of requests.


@pytest.mark.parametrize(
    ("target", "method", "path", "query"),
    [
        ("/a?b=c?d", "GET", "/a", "b=c?d"),
        ("*", "OPTIONS", "*", ""),
        ("http://h", "GET", "/", ""),
        ("http://h", "OPTIONS", "*", ""),
        ("http://h?", "OPTIONS", "/", ""),
        ("HTTPS://[::1]:80/a?b", "GET", "/a", "b"),
    ],
)
def test_target_is_split_into_path_and_query(
    target: str, method: str, path: str, query: str
) -> None:
    assert split_target(target, method) == (path, query)


# The accepted `traceparent` values by W3C Trace Context.


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-ff", True),
        (f"00-{TRACE}-{PARENT}-02", False),
        (f"cc-{TRACE}-{PARENT}-01", True),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like", True),
    ],
)
def test_valid_traceparent_is_accepted(value: str, is_sampled: bool) -> None:
    found = trace_context(Headers([("TraceParent", value), ("tracestate", "a=1,b=2")]))
    assert found is not None
    assert (found.trace_id, found.parent_id, found.state) == (TRACE, PARENT, "a=1,b=2")
    assert found.is_sampled is is_sampled
    assert not found.is_recorded
    assert re.fullmatch("[0-9a-f]{16}", found.span_id)
    assert found.span_id != PARENT


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"ff-{TRACE}-{PARENT}-01",
        f"0-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT.upper()}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"00-{TRACE}0-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-0x",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01-",
        f"cc-{TRACE}-{PARENT}-01.what",
        f"cc-{TRACE}-{PARENT}-012",
        f" 00-{TRACE}-{PARENT}-01 ",
        f"00-{TRACE}-{PARENT}-01\n",
        f"00_{TRACE}_{PARENT}_01",
        f"00-{TRACE[:-1]}\u0661-{PARENT}-01",
    ],
)
def test_malformed_traceparent_is_ignored(value: str) -> None:
    assert trace_context(Headers([("traceparent", value), ("tracestate", "a=1")])) is None


@pytest.mark.parametrize("names", [["tracestate"], ["traceparent", "traceparent"]])
def test_absent_or_repeated_traceparent_gives_no_trace_context(names: list[str]) -> None:
    fields = [(name, f"00-{TRACE}-{PARENT}-01") for name in names]
    assert trace_context(Headers(fields)) is None


def test_long_tracestate_is_dropped() -> None:
    fields = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "a=" + "1" * 10_000)]
    found = trace_context(Headers(fields))
    assert found is not None
    assert found.state == ""


# The memory of request bodies is shared between clients.


def test_a_client_holds_no_more_than_is_left_for_all_others() -> None:
    budget = BodyBudget(100)
    assert not budget.take("a", 51)
    assert budget.take("a", 50)
    assert not budget.take("a", 1)
    assert budget.take("b", 25)
    assert not budget.take("b", 1)
    budget.give_back("a", 50)
    assert budget.take("b", 12)
    budget.check()


def test_the_memory_that_is_left_bounds_bodies() -> None:
    mib, now, left = 2**20, 0.0, 1000 * 2**20
    budget = BodyBudget(1024 * mib, lambda: left, lambda: now)
    assert not budget.take("a", 101 * mib), "a body takes five times its size, and half is others'"
    assert budget.take("a", 100 * mib)
    budget.give_back("a", 100 * mib)
    left = 0
    assert budget.take("a", 100 * mib), "reading the limits takes long"
    budget.give_back("a", 100 * mib)
    now += 1.0
    assert not budget.take("a", 5 * mib)
    assert budget.take("a", 4 * mib), "small bodies are always read"
    now += 1.0
    left = 1000 * mib
    assert budget.take("a", 90 * mib)


def test_random_takes_and_returns_keep_the_body_budget_consistent() -> None:
    rng = random.Random(1)
    budget = BodyBudget(1000)
    taken: list[tuple[str, int]] = []
    for _ in range(5000):
        if taken and rng.random() < 0.45:
            budget.give_back(*taken.pop(rng.randrange(len(taken))))
        else:
            body = (rng.choice("abcd"), rng.randrange(1, 200))
            if budget.take(*body):
                taken.append(body)
        budget.check()
    for body in taken:
        budget.give_back(*body)
    budget.check()
    assert budget.used == 0


# Bodies in pieces of every size.


@pytest.mark.parametrize(
    "sizes",
    [
        [1],
        [1, 2, 3],
        [MAPPED - 1],
        [MAPPED],
        [MAPPED - 1, 1],
        [3 * MAPPED + 5],
        [MAPPED // 3] * 20,
        [MAPPED + 1, 7 * MAPPED, 1],
    ],
)
def test_body_buffer_returns_the_pieces_it_was_given(sizes: list[int]) -> None:
    content = Random(1).randbytes(sum(sizes))
    ends = [sum(sizes[:position]) for position in range(len(sizes) + 1)]
    buffer = BodyBuffer()
    for start, end in pairwise(ends):
        buffer.append(content[start:end])
    taken = buffer.take()
    assert len(taken) == len(content)
    assert taken[:] == content
    assert isinstance(taken, mmap) == (len(content) >= MAPPED)


# The parser alone: for any split of the bytes, the same requests are parsed.


CONFIG = HttpConfig(max_body=1024 * 1024)


class Recorder:
    """A sink that records its calls."""

    def __init__(
        self,
        *,
        budget: int = 1 << 30,
        config: HttpConfig = CONFIG,
    ) -> None:
        self.events: list[tuple[object, ...]] = []
        self.faults: list[Fault] = []
        self.budget = BodyBudget(budget)
        self.parser = RequestParser(config, self.budget, self)
        self.wanted = True
        self.refuse = False

    def on_head(self, request: Request, content_length: int | None) -> bool:
        if self.refuse:
            raise InputRefused
        return self.wanted

    def on_request(self, request: Request, keep_alive: bool) -> None:
        if request.body:
            self.budget.give_back(request.sender, len(request.body))
        fields = tuple(request.headers)
        self.events.append(
            (
                request.method,
                request.raw_path,
                request.query,
                request.http_version,
                fields,
                request.body,
                keep_alive,
            )
        )

    def on_fault(self, fault: Fault) -> None:
        self.faults.append(fault)
        # Whether an invalid first line begins with a method depends on the part that
        # was seen: both answers are right.
        self.events.append(("fault", 400 if fault.status == 501 else fault.status))

    def feed(self, *pieces: bytes) -> list[tuple[object, ...]]:
        for piece in pieces:
            self.parser.feed(piece)
        return self.events


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


SMALL = [case for case in CASES if len(case.raw) < 4000]
FAULTS = {400, 413, 414, 417, 431, 501, 505}
"""The statuses of the parser's refusals; others are of routes, handlers and deadlines."""


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.statuses], ids=lambda case: case.id
)
def test_case_has_the_same_fault_at_once_and_byte_by_byte(case: Case) -> None:
    whole, single = Recorder(), Recorder()
    whole.feed(*pieces_of(case.raw, list(range(0, len(case.raw), 65536))))
    assert [fault.status for fault in whole.faults] == [
        status for status in case.statuses if status in FAULTS
    ]
    if len(case.raw) < 4000:
        assert single.feed(*[bytes([byte]) for byte in case.raw]) == whole.events
    if whole.parser.phase is not ParserPhase.BODY:
        assert whole.budget.used == single.budget.used == 0


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (b"BREW /pot HTTP/1.1\r\n\r\n", 501, "unknown request method"),
        (b"G@T / HTTP/1.1\r\n\r\n", 400, "malformed request line"),
        (b"\x16\x03\x01\x02", 400, "TLS on a plaintext port"),
        (get("/a#b"), 400, "target"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "a Host field is required"),
        (get(host="a b"), 400, "invalid Host field"),
        (get("/", "Host: a"), 400, "more than one host field"),
        (get("/", "Authorization: a", "Authorization: b"), 400, "more than one authorization"),
        (get("/", "Transfer-Encoding: gzip, chunked"), 501, "the only supported transfer coding"),
        (chunked(b"").replace(b"1.1", b"1.0"), 400, "not part of HTTP/1.0"),
        (get("/", "Expect: x"), 417, "the only supported expectation"),
        (get("/", "Content-Length: 9999999"), 413, "the body is larger than 1048576 bytes"),
    ],
)
def test_fault_has_its_status_and_message(raw: bytes, status: int, message: str) -> None:
    recorder = Recorder()
    recorder.feed(raw)
    [fault] = recorder.faults
    assert fault.status == status
    assert message in fault.message
    assert fault.answered is (message != "TLS on a plaintext port")


@pytest.mark.parametrize(("largest", "status"), [(1 << 30, 503), (20, 413)])
def test_body_without_room_is_refused_and_one_that_never_fits_is_too_large(
    largest: int, status: int
) -> None:
    recorder = Recorder(budget=20, config=HttpConfig(max_buffered_bodies=largest))
    assert recorder.feed(post(b"x" * 11)) == [("fault", status)]
    assert recorder.budget.used == 0


def test_memory_of_an_unfinished_body_is_given_back_at_the_end() -> None:
    recorder = Recorder(budget=20)
    recorder.feed(post(b"x" * 9)[:-1])
    assert recorder.budget.used == 8
    recorder.parser.close()
    assert recorder.budget.used == 0


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(SMALL), min_size=1, max_size=4),
    st.lists(st.integers(0, 1 << 16), max_size=12),
)
def test_any_split_gives_the_same_requests(cases: list[Case], cuts: list[int]) -> None:
    raw = b"".join(case.raw for case in cases)
    whole = Recorder().feed(raw)
    assert Recorder().feed(*pieces_of(raw, cuts)) == whole


@pytest.mark.slow
@given(
    st.sampled_from(SMALL),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(max_size=3)), max_size=4),
    st.lists(st.integers(0, 1 << 16), max_size=4),
)
def test_mutated_requests_have_one_fault_at_most(
    case: Case, edits: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    raw = case.raw
    for position, replacement in edits:
        position %= len(raw) + 1
        raw = raw[:position] + replacement + raw[position + len(replacement) :]
    recorder = Recorder()
    recorder.feed(*pieces_of(raw, cuts))
    faults = [event for event in recorder.events if event[0] == "fault"]
    assert len(faults) <= 1
    assert not faults or recorder.events[-1] is faults[0]


@pytest.mark.slow
@given(st.lists(st.binary(max_size=60), max_size=5))
@example([b"\x16\x03\x01"])
@example([b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: \r\n\r\n"])
@example([b"GET / HTTP/1.1\r\nHost:\r\n\r\n", b"\x00"])
def test_noise_has_one_fault_at_most(pieces: list[bytes]) -> None:
    recorder = Recorder()
    recorder.feed(*pieces)
    assert all(event[0] != "fault" for event in recorder.events[:-1])


def test_an_unwanted_body_is_not_kept() -> None:
    recorder = Recorder(budget=0)
    recorder.wanted = False
    recorder.feed(post(b"hello"))
    assert [event[5] for event in recorder.events] == [b""]


def test_refused_input_is_not_read() -> None:
    recorder = Recorder()
    recorder.refuse = True
    assert recorder.feed(post(b"hello"), get()) == []
    assert recorder.parser.phase is ParserPhase.DONE


def test_trailers_are_bounded_whatever_the_content_was() -> None:
    body = b"%x\r\n%b\r\n0\r\n" % (500_000, b"x" * 500_000)
    recorder = Recorder()
    recorder.feed(chunked(body), b"X: ")
    for _ in range(CONFIG.max_head // 1024 + 1):
        recorder.feed(b"y" * 1024)
    assert recorder.events == [("fault", 431)]


def test_first_body_byte_ends_awaiting_continue() -> None:
    request = post(b"hello", "Expect: 100-continue")
    recorder = Recorder()
    recorder.feed(request[:-5])
    assert recorder.parser.awaiting_continue
    recorder.feed(b"h")
    assert not recorder.parser.awaiting_continue
    assert recorder.parser.body_size == 1


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError()], ids=["mmap", "bytes"]
)
def test_a_body_without_memory_is_refused(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(buffer: BodyBuffer, piece: bytes) -> None:
        raise error

    monkeypatch.setattr(BodyBuffer, "append", fail)
    recorder = Recorder()
    assert recorder.feed(post(b"hello")) == [("fault", 503)]
    assert recorder.budget.used == 0
