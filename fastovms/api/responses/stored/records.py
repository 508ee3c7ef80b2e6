"""Converts responses to the records of the store, and back: those that nobody runs any more come
back as failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import orjson

from fastovms.api.responses.input.hosted_items import Item
from fastovms.api.responses.output.response_object import ResponseForm, ResponseStatus, failed
from fastovms.api.responses.stored.event_log import EventLog
from fastovms.state.store import FoundResponse, ResponseProgress, StoredItem, StoredResponse

_UNFINISHED: Final[Mapping[ResponseProgress, ResponseStatus]] = {
    ResponseProgress.INTERRUPTED: failed("the server was stopped before the response was finished"),
    # One that runs on this replica is found in memory and never read from the store.
    ResponseProgress.RUNNING: failed("the response could not be kept when it was finished"),
}

_IN_PROGRESS: Final = b"response.in_progress"
_ITEM_DONE: Final = b"response.output_item.done"


def to_items(items: Iterable[Item]) -> list[StoredItem]:
    return [StoredItem(item["id"], orjson.dumps(item)) for item in items]


def to_record(
    form: ResponseForm,
    status: ResponseStatus,
    input: Sequence[StoredItem],
    output: Sequence[Item],
    *,
    progress: ResponseProgress = ResponseProgress.FINISHED,
    events: bytes | None = None,
) -> StoredResponse:
    return StoredResponse(
        form.id,
        orjson.dumps(form.body(status, None)),
        input=input,
        output=to_items(output),
        previous_id=form.members["previous_response_id"],
        progress=progress,
        events=events,
    )


def from_record(found: FoundResponse) -> bytes:
    """Returns the response object, as JSON. One that is stored as running, but runs nowhere, has
    failed."""
    body = found.body
    unfinished = _UNFINISHED.get(found.progress)
    if unfinished is not None:
        body = orjson.dumps({**orjson.loads(body), **unfinished.members()})
    output = b",".join(item.body for item in found.output)
    return body[:-1] + b',"output":[' + output + b"]}"


def running_body(found: FoundResponse, log: EventLog) -> bytes:
    """Returns the response object of a response that another replica runs, as JSON, by the events
    that are known of it: its status, and the items that are complete."""
    has_begun = any(name == _IN_PROGRESS for name, _ in log.events())
    status = "in_progress" if has_begun else "queued"
    body = orjson.loads(found.body)
    return orjson.dumps({**body, "status": status, "output": done_items(log)})


def done_items(log: EventLog) -> list[Item]:
    """Returns the items that are complete, by the events that are known."""
    return [orjson.loads(event)["item"] for name, event in log.events() if name == _ITEM_DONE]
