"""The parser alone: however the bytes are cut, the same requests come out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastovms.config.http_config import HttpConfig
from fastovms.http.parsing.body_budget import BodyBudget
from fastovms.http.parsing.faults import Fault, InputRefused
from fastovms.http.parsing.framing import ParserPhase, RequestParser
from fastovms.http.routing.messages import Request
from tests.http.more_cases import CASES, chunked, get, post

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


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(SMALL), min_size=1, max_size=4),
    st.lists(st.integers(0, 1 << 16), max_size=12),
)
def test_any_split_gives_the_same(cases: list[object], cuts: list[int]) -> None:
    raw = b"".join(case.raw for case in cases)  # type: ignore[attr-defined]
    whole = Recorder().feed(raw)
    assert Recorder().feed(*pieces_of(raw, cuts)) == whole


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


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
@example([b"\x16\x03\x01"])
@example([b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: \r\n\r\n"])
def test_noise_never_breaks_it(pieces: list[bytes]) -> None:
    recorder = Recorder()
    recorder.feed(*pieces)
    assert len(recorder.events) <= 1


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


def test_awaiting_continue() -> None:
    request = post(b"hello", "Expect: 100-continue")
    recorder = Recorder()
    recorder.feed(request[:-5])
    assert recorder.parser.awaiting_continue
    recorder.feed(b"h")
    assert not recorder.parser.awaiting_continue
    assert recorder.parser.body_size == 1
