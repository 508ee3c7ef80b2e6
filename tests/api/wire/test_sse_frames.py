"""What stands around the JSON of an event."""

from __future__ import annotations

from fastovms.api.wire.sse_frames import DONE, frame, split_frame, without_name


def test_frames() -> None:
    assert frame(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert frame(b"{}", "response.created") == b"event: response.created\ndata: {}\n\n"
    assert DONE == b"data: [DONE]\n\n"


def test_a_name_can_be_left_out() -> None:
    assert without_name(frame(b"{}", "error")) == without_name(frame(b"{}")) == frame(b"{}")


def test_a_frame_is_taken_apart() -> None:
    assert split_frame(frame(b'{"a":1}', "response.created")) == (b"response.created", b'{"a":1}')
