"""Endpoints `/batches`: create, describe, list and cancel batches of requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal

import msgspec

from fastovms.api.admin import WorkItem
from fastovms.api.answer import CachedTokens, ReasoningTokens
from fastovms.api.body import BodyReader, scan, show, wrong
from fastovms.api.dialect import (
    DIALECTS,
    AnswerSchema,
    Dialect,
    dialect_of,
    error_response,
    is_anthropics,
    render_error,
)
from fastovms.api.endpoint import (
    PAGE_QUERY,
    ApiHandler,
    ListPage,
    Operation,
    UrlQuery,
    endpoint,
    json_response,
    list_page,
    read_metadata,
)
from fastovms.api.served import ServedModels
from fastovms.api.unread import Members
from fastovms.errors import InvalidField, NotFound, RequestError, StateFailed
from fastovms.http.messages import BodySink, Handler, Request, Response, UploadHandler
from fastovms.http.routing import Match, Router
from fastovms.parts.batches.files import (
    BATCH_AGE,
    DeletedFile,
    FileForm,
    FileList,
    FileObject,
    Files,
    StatePart,
    seconds_of,
)
from fastovms.parts.batches.input import InputRules
from fastovms.parts.batches.records import BatchError, BatchRecord, BatchStatus
from fastovms.parts.batches.runner import BatchRunner
from fastovms.parts.batches.store import FileStore


class BatchErrors(AnswerSchema, kw_only=True):
    """The errors in the input file of a batch, at most 100."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchCounts(AnswerSchema):
    """The numbers of all, completed and failed requests of a batch so far."""

    total: int
    completed: int
    failed: int


class BatchTokens(AnswerSchema):
    """The token counts of all answered requests of a batch."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(AnswerSchema, kw_only=True):
    """A batch: its status and its output files."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchTokens
    metadata: dict[str, str] | None


class BatchList(ListPage[BatchObject]):
    """A page of the list of batches."""


def batch_object(record: BatchRecord) -> BatchObject:
    """Returns the API object of a batch record."""
    members = {
        name: getattr(record, name)
        for name in BatchObject.__struct_fields__
        if hasattr(record, name)
    }
    usage = record.usage
    members |= {
        "errors": BatchErrors(data=record.errors) if record.errors else None,
        "request_counts": BatchCounts(record.total, record.completed, record.failed),
        "usage": BatchTokens(
            usage.input_tokens,
            CachedTokens(cached_tokens=usage.cached_tokens),
            usage.output_tokens,
            ReasoningTokens(reasoning_tokens=usage.reasoning_tokens),
            usage.input_tokens + usage.output_tokens,
        ),
    }
    return BatchObject(**members)


_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNITS: Final = {"m": 60, "h": 3600, "d": 24 * 3600}
_LONGEST: Final = 30 * 24 * 3600
_PURPOSE: Final = "batch"


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /batches`."""

    MEMBERS: ClassVar[Members] = Members()

    input_file_id: str | None = None
    endpoint: str | None = None
    completion_window: str | None = None
    metadata: Mapping[str, Any] | None = None
    output_expires_after: Mapping[str, Any] | None = None


async def batch_work(kept: StatePart[BatchRunner]) -> list[WorkItem]:
    """Returns the unfinished batches of all tenants as work items."""
    if not kept.is_open:
        return []
    runner = kept.part
    return [
        WorkItem(
            "batch",
            record.id,
            record.tenant,
            "held" if runner.is_held(record) else str(record.status),
            record.endpoint,
            record.created_at,
            partial(_cancel, runner, record),
        )
        for record in runner.unfinished()
    ]


@dataclass(frozen=True, slots=True)
class Batches:
    """The handlers of `/batches`. Each raises NotFound for a batch that is not stored on this
    server or belongs to another tenant.

    Attributes:
        files: the store of input files.
        kept: the batch runner, or the reason why batches are not available.
        new_id: returns a new id of 32 random hexadecimal digits.
    """

    files: StatePart[FileStore]
    kept: StatePart[BatchRunner]
    endpoints: BatchEndpoints
    bodies: BodyReader
    new_id: Callable[[], str]
    unix_time: Callable[[], float]

    async def create(self, request: Request, dialect: Dialect) -> Response:
        """Creates and starts a batch."""
        body = await self.bodies.read(request, BatchRequest)
        runner = self.kept.part
        runner.check_room(request.sender)
        seconds = _window(body.completion_window)
        now = int(self.unix_time())
        record = BatchRecord(
            id=f"batch_{self.new_id()}",
            tenant=request.caller.tenant,
            owner=request.sender,
            endpoint=self._endpoint(body.endpoint),
            input_file_id=self._input(request.caller.tenant, body.input_file_id),
            completion_window=body.completion_window or "",
            created_at=now,
            expires_at=now + seconds,
            output_id=f"file-{self.new_id()}",
            error_id=f"file-{self.new_id()}",
            metadata=None if body.metadata is None else read_metadata(body.metadata),
            output_age=seconds_of(body.output_expires_after, "output_expires_after") or BATCH_AGE,
        )
        try:
            await runner.add(record)
        except OSError as error:
            raise _storage_failure(error) from None
        return json_response(batch_object(record))

    async def get(self, request: Request, dialect: Dialect) -> Response:
        """Returns a batch."""
        return json_response(batch_object(self._find(request)))

    async def list(self, request: Request, dialect: Dialect) -> Response:
        """Lists the tenant's batches."""
        page = UrlQuery(request).page()
        records = self.kept.part.list(request.caller.tenant)
        return json_response(list_page(records, page, batch_object))

    async def cancel(self, request: Request, dialect: Dialect) -> Response:
        """Cancels a batch; a repeated cancellation changes nothing. Raises RequestError if the
        batch has already completed, failed or expired."""
        record = self._find(request)
        if record.has_ended and record.cancelled_at is None:
            raise RequestError(f"the batch cannot be cancelled: it is {record.status}")
        return json_response(batch_object(await _cancel(self.kept.part, record)))

    def _find(self, request: Request) -> BatchRecord:
        id = request.path_params["id"]
        record = self.kept.part.find(request.caller.tenant, id)
        if record is None:
            raise NotFound(f"No batch found with id {show(id)}.", param="id")
        return record

    def _endpoint(self, given: str | None) -> str:
        if given is None or not self.endpoints.exists(given):
            raise wrong("endpoint", f"one of {', '.join(self.endpoints.all())}", given)
        return given

    def _input(self, tenant: str, id: str | None) -> str:
        if id is None:
            raise InvalidField.about("input_file_id", "is required")
        file = self.files.part.find(tenant, id)
        if file is None:
            raise InvalidField(f"input_file_id: there is no file {show(id)}", param="input_file_id")
        if file.purpose != _PURPOSE:
            raise InvalidField(
                f"input_file_id: the purpose of the file must be {show(_PURPOSE)}, not "
                f"{show(file.purpose)}",
                param="input_file_id",
            )
        return id


async def _cancel(runner: BatchRunner, record: BatchRecord) -> BatchRecord:
    try:
        return await runner.cancel(record)
    except OSError as error:
        raise _storage_failure(error) from None


def _window(given: str | None) -> int:
    """Returns the length of a completion window in seconds. Raises InvalidField if it is
    invalid."""
    found = _WINDOW.fullmatch(given or "")
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST:
        raise wrong("completion_window", 'minutes, hours or days up to "30d", such as "24h"', given)
    return seconds


def _storage_failure(error: OSError) -> StateFailed:
    return StateFailed(f"the batch cannot be kept: {error.strerror or error}")


PATHS: Final = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/messages",
    "/rerank",
    "/responses",
    "/score",
)
"""The endpoints that batches may use, without the dialect's prefix such as /v1."""

_URLS: Final = frozenset(
    f"{prefix}{path}" for dialect in DIALECTS for prefix in dialect.prefixes for path in PATHS
) | {"/v2/rerank"}


def refuse_line(error: RequestError, request: Request) -> Response:
    """Returns the error response for a batch line that is not run, in the format of the path's
    API."""
    return error_response(error, dialect_of(request.path), request.id)


class BatchEndpoints:
    """The endpoints of this server that batch lines may use, and the rules for the lines."""

    def __init__(self, router: Router, models: ServedModels, max_lines: int) -> None:
        self._router = router
        self._models = models
        self._max_lines = max_lines

    def exists(self, url: str) -> bool:
        """Returns whether batch lines may use the URL."""
        return url in _URLS and isinstance(self._router.match("POST", url), Match)

    def all(self) -> list[str]:
        """Returns the URLs with the prefix /v1 that batch lines may use, for error messages."""
        return [f"/v1{path}" for path in PATHS if self.exists(f"/v1{path}")]

    def rules(self, endpoint: str | None) -> InputRules:
        """Returns the rules for the lines of a batch. `endpoint` is the URL that all lines must
        use; None = lines may use different URLs."""
        return InputRules(endpoint, self.exists, self._find_model, self._max_lines, scan)

    def _find_model(self, name: str | None, url: str) -> str | None:
        try:
            return self._models.find(name, dialect_of(url)).name
        except RequestError:
            return None


def add_batch_routes(router: Router, files: Files, batches: Batches) -> None:
    """Adds the routes of files and batches. Batch lines are answered by the model routes that
    `router` already has."""

    def add(name: str, handler: ApiHandler, summary: str, answer: Any, **more: Any) -> None:
        method, _, path = name.partition(" ")
        section = "Batches" if path.startswith("/batches") else "Files"
        operation = Operation(summary, answer, section, **more)
        for dialect in DIALECTS:
            for prefix in dialect.prefixes:
                answering: Handler = endpoint(_of_openai(handler), dialect)
                if more.get("body") is FileForm:
                    answering = UploadHandler(_opener(files, dialect), endpoint(handler, dialect))
                router.add(method, f"{prefix}{path}", answering, operation)

    add(
        "POST /files",
        files.create,
        "Stores a file. The form has `file`, `purpose`, and for a file that expires "
        "`expires_after[anchor]` and `expires_after[seconds]`.",
        FileObject,
        body=FileForm,
        body_type="multipart/form-data",
    )
    listed = {**PAGE_QUERY, "purpose": str}
    add("GET /files", files.list, "Lists the files, the newest first.", FileList, query=listed)
    add("GET /files/{id}", files.get, "Describes a file.", FileObject)
    add(
        "DELETE /files/{id}",
        files.delete,
        "Deletes a file, unless a batch that has not ended reads it.",
        DeletedFile,
    )
    add(
        "GET /files/{id}/content",
        files.content,
        "Returns the content of a file, or the `Range` of it.",
        str,
        media_type="application/octet-stream",
    )
    add(
        "POST /batches",
        batches.create,
        "Runs the requests in a file of JSON lines at the lowest priority, and stores the answers "
        "in another file.",
        BatchObject,
        body=BatchRequest,
        required=("input_file_id", "endpoint", "completion_window"),
        examples="batches",
    )
    summary = "Lists the batches, the newest first."
    add("GET /batches", batches.list, summary, BatchList, query=PAGE_QUERY)
    add("GET /batches/{id}", batches.get, "Returns a batch with its progress.", BatchObject)
    summary = "Cancels a batch and keeps the results so far."
    add("POST /batches/{id}/cancel", batches.cancel, summary, BatchObject)


def _opener(files: Files, dialect: Dialect) -> Callable[[Request], BodySink | Response]:
    def open_sink(request: Request) -> BodySink | Response:
        return _refusal(request) or files.open_upload(request, dialect)

    return open_sink


def _of_openai(handler: ApiHandler) -> ApiHandler:
    async def answer(request: Request, dialect: Dialect) -> Response | None:
        return _refusal(request) or await handler(request, dialect)

    return answer


def _refusal(request: Request) -> Response | None:
    """Returns a 404 for Anthropic's clients, whose Files API has the same paths as OpenAI's; None
    for other clients."""
    if not is_anthropics(request):
        return None
    return render_error(
        request,
        404,
        f"{request.method} {request.path} is not supported for Anthropic's client: send the data "
        "in the message, or upload the file with OpenAI's client",
    )
