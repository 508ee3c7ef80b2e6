from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.client import event_stream
from fastovms.client.event_stream import EventStream
from fastovms.client.request_failed import RequestFailed

STREAM = (
    b": a comment\n\n"
    b'data: {"text":"a data: b"}\n\n'
    b"event: message\r\ndata:{}\r\n\r\n"
    b"id: 5\ndata: [DONE]\n\n"
)
EVENTS = [b'{"text":"a data: b"}', b"{}", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_found_however_they_are_cut(cuts: list[int]) -> None:
    stream = EventStream()
    bounds = [0, *sorted(cuts), len(STREAM)]
    found = [event for start, end in pairwise(bounds) for event in stream.feed(STREAM[start:end])]
    assert found == EVENTS


def test_a_line_without_end_is_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_MAX_LINE", 10)
    with pytest.raises(RequestFailed, match="no end"):
        EventStream().feed(b"data: 0123456789")
