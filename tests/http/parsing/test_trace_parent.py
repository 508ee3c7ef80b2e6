"""Which `traceparent` is taken, by W3C Trace Context."""

from __future__ import annotations

import re

import pytest

from fastovms.http.parsing.trace_parent import trace_context
from fastovms.http.routing.messages import Headers

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
def test_what_is_taken(value: str, is_sampled: bool) -> None:
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
def test_what_counts_as_missing(value: str) -> None:
    assert trace_context(Headers([("traceparent", value), ("tracestate", "a=1")])) is None


def test_two_of_them_are_none() -> None:
    fields = [("traceparent", f"00-{TRACE}-{PARENT}-01")] * 2
    assert trace_context(Headers(fields)) is None


def test_nothing_is_made_up() -> None:
    assert trace_context(Headers([("tracestate", "a=1")])) is None


def test_a_state_beyond_all_bounds_is_dropped() -> None:
    fields = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "a=" + "1" * 10_000)]
    found = trace_context(Headers(fields))
    assert found is not None
    assert found.state == ""
