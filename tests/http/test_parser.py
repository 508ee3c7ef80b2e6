"""Tests of `fastovms/http/parser.py`."""

from __future__ import annotations

import errno
import random
import re
from itertools import pairwise
from mmap import mmap
from random import Random

import httptools
import pytest
from hypothesis import example, given, settings
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
    body_length,
    expects_continue,
    large_body_fault,
    method_fault,
    parse_fault,
    split_target,
    trace_context,
    without_upgrade,
)
from tests.http.more_cases import CASES, chunked, get, post

# Faults of requests: the status and message of each.


@pytest.mark.parametrize(
    ("line", "status", "message", "answered"),
    [
        (None, 400, "malformed request line", True),
        (b"BREW /pot HTTP/1.1", 501, "unknown request method", True),
        (b"\r\nBREW", 501, "unknown request method", True),
        (b"G@T / HTTP/1.1", 400, "malformed request line", True),
        (b"", 400, "malformed request line", True),
        (b"A" * 300, 501, "unknown request method", True),
        (b"\x16\x03\x01\x02", 400, "TLS on a plaintext port", False),
    ],
)
def test_method_fault_has_the_status_of_a_bad_request_line(
    line: bytes | None, status: int, message: str, answered: bool
) -> None:
    fault = method_fault(line)
    assert (fault.status, fault.message, fault.answered) == (status, message, answered)


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505), (b"GET / HTTP/1.1\r\nA\r\n\r\n", 400)],
)
def test_error_of_httptools_gets_its_status(data: bytes, status: int) -> None:
    with pytest.raises(httptools.HttpParserError) as caught:
        httptools.HttpRequestParser(None).feed_data(data)
    assert parse_fault(caught.value).status == status


def test_fault_of_a_large_body_names_the_limit() -> None:
    fault = large_body_fault(100)
    assert (fault.status, fault.message) == (413, "the body is larger than 100 bytes")


# What is checked of a head: its target, and the fields that framing and routing rest on.


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


@pytest.mark.parametrize(
    "target", ["/a#b", "*", "a", "ftp://h/a", "http:///a", "http://a b/", "http://u@h/"]
)
def test_malformed_targets_are_bad_requests(target: str) -> None:
    with pytest.raises(Fault) as caught:
        split_target(target, "GET")
    assert caught.value.status == 400


def head(*fields: tuple[str, str], version: str = "1.1", host: str | None = "h") -> Request:
    hosts = [] if host is None else [("host", host)]
    return Request("POST", "/", headers=Headers([*hosts, *fields]), http_version=version)


@pytest.mark.parametrize(
    ("request_head", "length"),
    [
        (head(), 0),
        (head(("content-length", "0" * 5000 + "7")), 7),
        (head(("transfer-encoding", "Chunked")), None),
        (head(("expect", "100-Continue"), ("content-length", "10")), 10),
        (head(version="1.0", host=None), 0),
        (head(host="[::1]:80"), 0),
    ],
)
def test_body_length_follows_content_length_and_transfer_coding(
    request_head: Request, length: int | None
) -> None:
    assert body_length(request_head) == length


@pytest.mark.parametrize(
    ("request_head", "status", "message"),
    [
        (head(host=None), 400, "a Host field is required"),
        (head(host="a b"), 400, "invalid Host field"),
        (head(("host", "h")), 400, "more than one host field"),
        (head(("authorization", "a"), ("authorization", "b")), 400, "more than one authorization"),
        (head(("transfer-encoding", "gzip, chunked")), 501, "the only supported transfer coding"),
        (head(("transfer-encoding", "chunked"), version="1.0"), 400, "not part of HTTP/1.0"),
        (head(("expect", "x")), 417, "the only supported expectation"),
    ],
)
def test_invalid_or_unsupported_fields_are_refused(
    request_head: Request, status: int, message: str
) -> None:
    with pytest.raises(Fault, match=message) as caught:
        body_length(request_head)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("request_head", "length", "expected"),
    [
        (head(("expect", "100-continue")), 5, True),
        (head(("expect", "100-continue")), None, True),
        (head(("expect", "100-continue")), 0, False),
        (head(("expect", "100-continue"), version="1.0"), 5, False),
        (head(), 5, False),
    ],
)
def test_request_expects_continue_by_version_length_and_header(
    request_head: Request, length: int | None, expected: bool
) -> None:
    assert expects_continue(request_head, length) is expected


def test_a_head_without_its_upgrade() -> None:
    fields = [(b"Upgrade", b"h2c"), (b"Connection", b"close, Upgrade,,x"), (b"A", b"b")]
    assert without_upgrade(b"GET", b"/", b"1.1", fields) == (
        b"GET / HTTP/1.1\r\nConnection: close, x\r\nA: b\r\n\r\n"
    )


# Which `traceparent` is taken, by W3C Trace Context.


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


def test_repeated_traceparent_gives_no_trace_context() -> None:
    fields = [("traceparent", f"00-{TRACE}-{PARENT}-01")] * 2
    assert trace_context(Headers(fields)) is None


def test_tracestate_alone_gives_no_trace_context() -> None:
    assert trace_context(Headers([("tracestate", "a=1")])) is None


def test_a_state_beyond_all_bounds_is_dropped() -> None:
    fields = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "a=" + "1" * 10_000)]
    found = trace_context(Headers(fields))
    assert found is not None
    assert found.state == ""


# How the memory of request bodies is shared out.


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


def test_plenty_of_memory_is_not_looked_at() -> None:
    looks: list[float] = []
    budget = BodyBudget(1000, lambda: looks.append(0.0) or 1e6)
    for _ in range(10):
        assert budget.take("a", 50)
    assert len(looks) == 1


@pytest.mark.parametrize("num_hogs", [1, 2, 9])
def test_a_small_body_finds_room_however_many_hold_all_that_they_may(num_hogs: int) -> None:
    budget = BodyBudget(1000)
    hogs = [f"hog {number}" for number in range(num_hogs)]
    while sum(budget.take(hog, 1) for hog in hogs):
        pass
    assert budget.take("small", 1000 // (num_hogs + 2) // 2)
    budget.check()


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
def test_content_is_what_came(sizes: list[int]) -> None:
    content = Random(1).randbytes(sum(sizes))
    ends = [sum(sizes[:position]) for position in range(len(sizes) + 1)]
    buffer = BodyBuffer()
    for start, end in pairwise(ends):
        buffer.append(content[start:end])
    taken = buffer.take()
    assert len(taken) == len(content)
    assert taken[:] == content
    assert isinstance(taken, mmap) == (len(content) >= MAPPED)


# The parser alone: however the bytes are cut, the same requests come out.


CONFIG = HttpConfig(max_body=1024 * 1024)


class Recorder:
    """A sink that keeps what it is told."""

    def __init__(
        self,
        *,
        budget: int = 1 << 30,
        config: HttpConfig = CONFIG,
    ) -> None:
        self.events: list[tuple[object, ...]] = []
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
        # Whether a first line that is no request begins with a method depends on how much of it
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


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_byte_by_byte(case: object) -> None:
    raw = case.raw  # type: ignore[attr-defined]
    whole = Recorder()
    single = Recorder()
    whole.feed(raw)
    assert single.feed(*[bytes([byte]) for byte in raw]) == whole.events
    if whole.parser.phase is not ParserPhase.BODY:
        assert whole.budget.used == single.budget.used == 0


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(SMALL), min_size=1, max_size=4),
    st.lists(st.integers(0, 1 << 16), max_size=12),
)
def test_any_split_gives_the_same(cases: list[object], cuts: list[int]) -> None:
    raw = b"".join(case.raw for case in cases)  # type: ignore[attr-defined]
    whole = Recorder().feed(raw)
    assert Recorder().feed(*pieces_of(raw, cuts)) == whole


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(SMALL),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(max_size=3)), max_size=4),
    st.lists(st.integers(0, 1 << 16), max_size=4),
)
def test_mutations_never_break_it(
    case: object, edits: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    raw = case.raw  # type: ignore[attr-defined]
    for position, replacement in edits:
        position %= len(raw) + 1
        raw = raw[:position] + replacement + raw[position + len(replacement) :]
    recorder = Recorder()
    recorder.feed(*pieces_of(raw, cuts))
    faults = [event for event in recorder.events if event[0] == "fault"]
    assert len(faults) <= 1
    assert not faults or recorder.events[-1] is faults[0]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
@example([b"\x16\x03\x01"])
@example([b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: \r\n\r\n"])
@example([b"GET / HTTP/1.1\r\nHost:\r\n\r\n", b"\x00"])
def test_noise_never_breaks_it(pieces: list[bytes]) -> None:
    recorder = Recorder()
    recorder.feed(*pieces)
    assert all(event[0] != "fault" for event in recorder.events[:-1])


def test_the_budget_bounds_all_bodies_together() -> None:
    recorder = Recorder(budget=20)
    assert recorder.feed(post(b"x" * 11)) == [("fault", 503)]
    assert recorder.budget.used == 0
    unfinished = Recorder(budget=20)
    unfinished.feed(post(b"x" * 9)[:-1])
    assert unfinished.budget.used == 8
    unfinished.parser.close()
    assert unfinished.budget.used == 0


def test_a_body_that_would_never_be_read_is_too_large() -> None:
    recorder = Recorder(budget=20, config=HttpConfig(max_buffered_bodies=20))
    assert recorder.feed(post(b"x" * 11)) == [("fault", 413)]


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


def test_an_error_of_the_sink_is_not_hidden() -> None:
    class Broken(Recorder):
        def on_head(self, request: Request, content_length: int | None) -> bool:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Broken().feed(get())


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
