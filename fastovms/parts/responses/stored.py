"""Converts responses to and from their stored records."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import orjson

from fastovms.api.endpoint import ListPage, UrlQuery
from fastovms.errors import InvalidField, NotFound
from fastovms.http.messages import Request
from fastovms.parts.responses.events import EventLog
from fastovms.parts.responses.input import Item
from fastovms.parts.responses.output import ResponseForm, ResponseStatus, failed
from fastovms.parts.responses.request import check_include
from fastovms.state.store import (
    FoundResponse,
    ItemPage,
    ResponseProgress,
    StoredItem,
    StoredResponse,
)

logger = logging.getLogger(__name__)
_UNFINISHED: Final[Mapping[ResponseProgress, ResponseStatus]] = {
    ResponseProgress.INTERRUPTED: failed("the server was stopped before the response was finished"),
    # A response that runs on this replica is read from memory, never from the store.
    ResponseProgress.RUNNING: failed("the response could not be kept when it was finished"),
}
_IN_PROGRESS: Final = b"response.in_progress"
_ITEM_DONE: Final = b"response.output_item.done"


def to_items(items: Iterable[Item]) -> list[StoredItem]:
    """Returns the items in their stored form, each with its id."""
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
    """Returns the record under which a response is stored."""
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
    """Returns the response object as JSON. A response that is stored as running but runs on no
    replica is returned as failed."""
    body = found.body
    unfinished = _UNFINISHED.get(found.progress)
    if unfinished is not None:
        body = orjson.dumps({**orjson.loads(body), **unfinished.members()})
    output = b",".join(item.body for item in found.output)
    return body[:-1] + b',"output":[' + output + b"]}"


def running_body(found: FoundResponse, log: EventLog) -> bytes:
    """Returns the response object, as JSON, of a response that another replica runs: its status and
    complete items are reconstructed from its events."""
    has_begun = any(name == _IN_PROGRESS for name, _ in log.events())
    status = "in_progress" if has_begun else "queued"
    body = orjson.loads(found.body)
    return orjson.dumps({**body, "status": status, "output": done_items(log)})


def done_items(log: EventLog) -> list[Item]:
    """Returns the complete items that the events of a log contain."""
    return [orjson.loads(event)["item"] for name, event in log.events() if name == _ITEM_DONE]


T = TypeVar("T")


def not_found(what: str, id: str, *, param: str | None = None, code: str | None = None) -> NotFound:
    """Returns the error for an unknown id."""
    return NotFound(f"{what} with id '{id[:200]}' not found.", param=param, code=code)


def previous_not_found(id: str) -> NotFound:
    """Returns the error for an unknown `previous_response_id`."""
    return not_found(
        "Previous response",
        id,
        param="previous_response_id",
        code="previous_response_not_found",
    )


def id_is_taken(id: str) -> InvalidField:
    """Returns the error for a request whose id belongs to an existing response."""
    return InvalidField(f"request_id: there is a response with the id '{id}'", param="request_id")


def found(result: T | None, what: str, id: str) -> T:
    """Returns `result`. Raises NotFound if it is None."""
    if result is None:
        raise not_found(what, id)
    return result


class Query(UrlQuery):
    """The query parameters of a request for a response. Raises RequestError if there are too many
    parameters, or `include` has an unknown value."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        check_include(self.texts("include"))


def list_body(page: ItemPage) -> bytes:
    """Returns the JSON body of a list page."""
    ids = [item.id for item in page.items]
    return msgspec.json.encode(
        ListPage(
            data=[msgspec.Raw(item.body) for item in page.items],
            first_id=ids[0] if ids else None,
            last_id=ids[-1] if ids else None,
            has_more=page.has_more,
        )
    )
