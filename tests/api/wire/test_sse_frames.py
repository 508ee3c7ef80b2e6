"""What stands around the JSON of an event."""

from __future__ import annotations

from fastovms.api.wire.sse_frames import DONE, frame, without_name


def test_frames() -> None:
    assert frame(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert frame(b"{}", "response.created") == b"event: response.created\ndata: {}\n\n"
    assert DONE == b"data: [DONE]\n\n"


def test_a_name_can_be_left_out() -> None:
    assert without_name(frame(b"{}", "error")) == without_name(frame(b"{}")) == frame(b"{}")
