"""Which frames of a stream carry `usage`."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from fastovms.api.generation.deltas import Usage
from fastovms.api.generation.envelope import usage_body
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.stream_usage import StreamUsage
from fastovms.api.wire.bodies.request_schemas import StreamOptions


class FakeGeneration:
    usage = Usage(5, 9, 0, None)

    def usage_of(self, choice: int) -> Usage:
        return Usage(5, choice, 0, None)


def stream_usage(**options: bool) -> StreamUsage:
    return StreamUsage(cast(TextGeneration, FakeGeneration()), StreamOptions(**options))


ALL: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("options", "of_choice", "has_last"),
    [
        ({}, b"", False),
        ({"continuous_usage_stats": True}, b"", False),
        ({"include_usage": True}, b',"usage":null', True),
        (ALL, b',"usage":' + orjson.dumps(usage_body(Usage(5, 3, 0, None))), True),
    ],
)
def test_frames_with_usage(options: dict[str, bool], of_choice: bytes, has_last: bool) -> None:
    usage = stream_usage(**options)
    assert usage.member(3) == of_choice
    assert usage.is_continuous == (options == ALL)
    assert (usage.last_frame(b'data: {"choices":[') != b"") is has_last


def test_a_frame_for_several_choices_tells_of_none() -> None:
    assert stream_usage(**ALL).member(None) == b',"usage":null'


def test_the_last_frame_tells_of_all_and_has_no_choices() -> None:
    frame = stream_usage(include_usage=True).last_frame(b'data: {"choices":[')
    body = orjson.loads(frame.removeprefix(b"data: "))
    assert body == {"choices": [], "usage": usage_body(FakeGeneration.usage)}
