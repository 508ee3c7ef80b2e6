"""Answers `/batches`: makes, describes, lists and cancels batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import orjson

from fastovms.api.admin.work import WorkItem
from fastovms.api.batches.batch_object import batch_object
from fastovms.api.batches.endpoints import BatchEndpoints
from fastovms.api.files.expiry import BATCH_AGE, seconds_of
from fastovms.api.files.file_endpoints import KeptFiles
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.body_reader import BodyReader
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.metadata_field import read_metadata
from fastovms.api.wire.object_page import list_page
from fastovms.api.wire.url_query import UrlQuery
from fastovms.batches.batch_record import BatchRecord
from fastovms.batches.batch_runner import BatchRunner
from fastovms.errors import InvalidField, NotFound, RequestError, StateFailed
from fastovms.http.routing.messages import Request, Response

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNITS: Final = {"m": 60, "h": 3600, "d": 24 * 3600}
_LONGEST: Final = 30 * 24 * 3600
_PURPOSE: Final = "batch"


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /batches`."""

    input_file_id: str | None = None
    endpoint: str | None = None
    completion_window: str | None = None
    metadata: Mapping[str, Any] | None = None
    output_expires_after: Mapping[str, Any] | None = None


class KeptBatches:
    """The batches of this server, or why it has none.

    Args:
        runner: None = there are none.
        reason: why not, in words.
        is_fault: whether there are to be some.
    """

    def __init__(
        self, runner: BatchRunner | None, reason: str = "", *, is_fault: bool = False
    ) -> None:
        self._runner = runner
        self._reason = reason
        self._is_fault = is_fault

    @property
    def has_runner(self) -> bool:
        return self._runner is not None

    @property
    def runner(self) -> BatchRunner:
        """The runner.

        Raises:
            StateFailed: there is none, through a fault.
            RequestError: there is to be none.
        """
        if self._runner is not None:
            return self._runner
        message = f"this server keeps no batches: {self._reason}"
        raise StateFailed(message) if self._is_fault else RequestError(message)


async def batch_work(kept: KeptBatches) -> list[WorkItem]:
    """Returns the batches of all tenants that have not ended."""
    if not kept.has_runner:
        return []
    runner = kept.runner
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


class Batches:
    """The handlers of `/batches`. Each raises NotFound for a batch that is not kept here, or is
    somebody else's.

    Args:
        files: has the inputs.
        kept: has the batches.
        new_id: makes ids of 32 random hexadecimal digits.
    """

    def __init__(
        self,
        files: KeptFiles,
        kept: KeptBatches,
        endpoints: BatchEndpoints,
        bodies: BodyReader,
        new_id: Callable[[], str],
        unix_time: Callable[[], float],
    ) -> None:
        self._files = files
        self._kept = kept
        self._endpoints = endpoints
        self._bodies = bodies
        self._new_id = new_id
        self._unix_time = unix_time

    async def create(self, request: Request, dialect: Dialect) -> Response:
        """Makes a batch, which begins at once."""
        body = await self._bodies.read(request, BatchRequest)
        runner = self._kept.runner
        runner.check_room(request.sender)
        seconds = _window(body.completion_window)
        now = int(self._unix_time())
        record = BatchRecord(
            id=f"batch_{self._new_id()}",
            tenant=request.tenant,
            owner=request.sender,
            endpoint=self._endpoint(body.endpoint),
            input_file_id=self._input(request.tenant, body.input_file_id),
            completion_window=body.completion_window or "",
            created_at=now,
            expires_at=now + seconds,
            output_id=f"file-{self._new_id()}",
            error_id=f"file-{self._new_id()}",
            metadata=None if body.metadata is None else read_metadata(body.metadata),
            output_age=seconds_of(body.output_expires_after, "output_expires_after") or BATCH_AGE,
        )
        try:
            await runner.add(record)
        except OSError as error:
            raise _not_kept(error) from None
        return _answer(record)

    async def get(self, request: Request, dialect: Dialect) -> Response:
        return _answer(self._find(request))

    async def list(self, request: Request, dialect: Dialect) -> Response:
        page = UrlQuery(request).page()
        records = [*self._kept.runner.list(request.tenant)]
        return Response(200, list_page(records, page, batch_object))

    async def cancel(self, request: Request, dialect: Dialect) -> Response:
        """Cancels a batch; a second time changes nothing.

        Raises:
            RequestError: it has ended otherwise.
        """
        record = self._find(request)
        if record.has_ended and record.cancelled_at is None:
            raise RequestError(f"the batch cannot be cancelled: it is {record.status}")
        return _answer(await _cancel(self._kept.runner, record))

    def _find(self, request: Request) -> BatchRecord:
        id = request.path_params["id"]
        record = self._kept.runner.find(request.tenant, id)
        if record is None:
            raise NotFound(f"No batch found with id {show(id)}.", param="id")
        return record

    def _endpoint(self, given: str | None) -> str:
        if given is None or not self._endpoints.exists(given):
            raise InvalidField(
                f"endpoint must be one of {', '.join(self._endpoints.all())}, not {show(given)}",
                param="endpoint",
            )
        return given

    def _input(self, tenant: str, id: str | None) -> str:
        if id is None:
            raise InvalidField("input_file_id is required", param="input_file_id")
        file = self._files.store.find(tenant, id)
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
        raise _not_kept(error) from None


def _window(given: str | None) -> int:
    """Returns the seconds of a completion window."""
    found = _WINDOW.fullmatch(given or "")
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST:
        raise InvalidField(
            'completion_window must be minutes, hours or days up to "30d", such as "24h", not '
            f"{show(given)}",
            param="completion_window",
        )
    return seconds


def _answer(record: BatchRecord) -> Response:
    return Response(200, orjson.dumps(batch_object(record)))


def _not_kept(error: OSError) -> StateFailed:
    return StateFailed(f"the batch cannot be kept: {error.strerror or error}")
