"""Events of a response's stream are read by their type."""

from __future__ import annotations

import msgspec
import pytest

from fastovms.parts.openapi.schemas import RESPONSE_EVENT

PLACE = '"item_id":"a","output_index":0,"content_index":0'


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (
            f'{{"type":"response.output_text.delta","sequence_number":1,{PLACE},'
            '"delta":"b","logprobs":[]}',
            "OutputTextDeltaEvent",
        ),
        (
            f'{{"type":"response.reasoning_text.done","sequence_number":1,{PLACE},"text":"b"}}',
            "ReasoningTextDoneEvent",
        ),
        (
            '{"type":"error","sequence_number":1,"code":null,"message":"a","param":null}',
            "ErrorEvent",
        ),
    ],
)
def test_event_is_decoded_by_its_type(event, name):
    read = msgspec.json.decode(event, type=RESPONSE_EVENT)
    assert type(read).__name__ == name


@pytest.mark.parametrize(
    "event",
    [
        '{"type":"response.unknown","sequence_number":1}',
        f'{{"type":"response.reasoning_text.done","sequence_number":1,{PLACE}}}',
        f'{{"type":"response.reasoning_text.done","sequence_number":1,{PLACE},"text":"b","c":1}}',
    ],
)
def test_unknown_or_malformed_event_is_refused(event):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(event, type=RESPONSE_EVENT)
