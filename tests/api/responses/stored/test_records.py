"""Responses as they are stored, and as they are read again."""

from __future__ import annotations

import orjson
import pytest

from fastovms.api.responses.output.response_object import ResponseForm, ResponseStatus
from fastovms.api.responses.stored.records import from_record, to_items, to_record
from fastovms.state.store import FoundResponse, ResponseProgress, StoredItem

FORM = ResponseForm({"id": "resp_1", "previous_response_id": "resp_0", "store": True}, "length")
ITEMS = [{"id": "msg_1", "text": "é"}, {"id": "msg_2"}]


def test_a_record_has_the_object_without_its_output() -> None:
    status = ResponseStatus("completed", completed_at=5)
    record = to_record(FORM, status, [StoredItem("in", b"{}")], ITEMS, events=b"e")
    assert (record.id, record.previous_id, record.events) == ("resp_1", "resp_0", b"e")
    assert "output" not in orjson.loads(record.body)
    assert [item.id for item in record.output] == ["msg_1", "msg_2"]
    assert record.progress is ResponseProgress.FINISHED


@pytest.mark.parametrize(
    ("progress", "status", "reason"),
    [
        (ResponseProgress.FINISHED, "completed", None),
        (ResponseProgress.INTERRUPTED, "failed", "the server was stopped"),
        (ResponseProgress.RUNNING, "failed", "could not be kept"),
    ],
)
def test_what_was_left_running_has_failed(
    progress: ResponseProgress, status: str, reason: str | None
) -> None:
    record = to_record(FORM, ResponseStatus("completed", completed_at=5), [], ITEMS)
    told = orjson.loads(from_record(FoundResponse(record.body, to_items(ITEMS), progress)))
    assert (told["id"], told["status"], told["output"]) == ("resp_1", status, ITEMS)
    error = told["error"]
    assert error is None if reason is None else reason in error["message"]
