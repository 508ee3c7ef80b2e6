"""Answers `/files`: uploads, lists, describes and deletes files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import orjson

from fastovms.api.files.content import send_content
from fastovms.api.files.expiry import BATCH_AGE, seconds_of
from fastovms.api.files.file_object import file_object, no_such_file
from fastovms.api.files.form_reader import FormReader
from fastovms.api.files.upload_sink import MIN_RATE, UploadSink
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import error_response
from fastovms.api.wire.object_page import list_page
from fastovms.api.wire.url_query import UrlQuery
from fastovms.errors import InvalidField, Overloaded, RequestError, StateFailed
from fastovms.fair_queue import Shares
from fastovms.files.file_record import BATCH_OUTPUT, PURPOSES, FileRecord
from fastovms.files.file_store import FileStore
from fastovms.http.gates.media_type import essence
from fastovms.http.routing.body_sink import BodySink
from fastovms.http.routing.messages import Request, Response

_MAX_UPLOADS: Final = 16
"""Uploads of one client at a time; of all others together, as many again."""

_MAX_LISTED: Final = 10_000
_FORM: Final = "multipart/form-data"


class KeptFiles:
    """The files of this server, or why it has none.

    Args:
        store: None = there are none.
        reason: why not, in words.
    """

    def __init__(self, store: FileStore | None, reason: str = "") -> None:
        self._store = store
        self._reason = reason

    @property
    def store(self) -> FileStore:
        """The store. Raises RequestError: there is none."""
        if self._store is None:
            raise RequestError(f"this server keeps no files: {self._reason}")
        return self._store


class Files:
    """The handlers of `/files`. Each raises NotFound for a file that is not kept here, or is
    somebody else's."""

    def __init__(
        self, kept: KeptFiles, new_id: Callable[[], str], unix_time: Callable[[], float]
    ) -> None:
        self._kept = kept
        self._new_id = new_id
        self._unix_time = unix_time
        self._uploads = Shares.of_places(_MAX_UPLOADS)

    def open_upload(self, request: Request, dialect: Dialect) -> BodySink | Response:
        """Opens what takes the body of an upload, or refuses it by its head."""
        try:
            return self._open_upload(request)
        except (RequestError, Overloaded) as error:
            return error_response(error, dialect)

    def _open_upload(self, request: Request) -> UploadSink:
        store = self._kept.store
        content_type = request.headers.get("content-type") or ""
        if essence(content_type) != _FORM:
            raise RequestError(f"a file comes as {_FORM}, not as {show(content_type)}")
        owner = request.sender
        if not store.has_room(owner):
            count = store.files.held(owner)
            message = f"{count} files are kept of yours, which is the limit: delete some of them"
            raise RequestError(message) if count else Overloaded("no further file can be kept now")
        if not self._uploads.may_take(owner):
            count = self._uploads.held(owner)
            raise Overloaded(f"{count} files are uploaded by you already, which is the limit")
        reader = FormReader(content_type, store.new_partial(), store.config.max_file_size)
        self._uploads.hold(owner)
        return UploadSink(
            store,
            reader,
            partial(self._uploads.give_back, owner),
            owner=owner,
            min_rate=partial(self._min_rate, owner),
        )

    def _min_rate(self, owner: str) -> float:
        """Returns how fast each upload of an owner must be. Where the places run out, an owner pays
        for each that it holds, so that none of its slow uploads keeps others out for hours."""
        is_full = self._uploads.used >= self._uploads.free
        return MIN_RATE * (self._uploads.held(owner) if is_full else 1)

    async def create(self, request: Request, dialect: Dialect) -> Response:
        """Makes a file of an upload."""
        store, sink = self._kept.store, request.sink
        assert isinstance(sink, UploadSink)
        try:
            form = await sink.form()
        except RequestError as error:
            refused = error_response(error, dialect)
            return refused if sink.fault is None else replace(refused, status=sink.fault[0])
        purpose = form.fields.get("purpose")
        if purpose not in PURPOSES:
            raise InvalidField(
                f"purpose must be one of {', '.join(PURPOSES)}, not {show(purpose)}",
                param="purpose",
            )
        age = seconds_of(_expires_after(form.fields), "expires_after")
        if age is None and purpose == "batch":
            age = BATCH_AGE
        now = int(self._unix_time())
        record = FileRecord(
            id=f"file-{self._new_id()}",
            tenant=request.tenant,
            owner=request.sender,
            name=form.file_name or "",
            purpose=purpose,
            size=form.size,
            created_at=now,
            expires_at=None if age is None else now + age,
        )
        try:
            await store.add(form.path, record)
        except asyncio.CancelledError:
            store.drop(record.id)  # its client has gone, and will never know of it
            raise
        except OSError as error:
            raise StateFailed(f"the file cannot be kept: {error.strerror or error}") from None
        return _answer(record)

    async def list(self, request: Request, dialect: Dialect) -> Response:
        query = UrlQuery(request)
        page = query.page(usual=_MAX_LISTED, most=_MAX_LISTED)
        purpose = query.text("purpose")
        if purpose is not None and purpose not in (*PURPOSES, BATCH_OUTPUT):
            raise InvalidField(
                f"purpose must be one of {', '.join((*PURPOSES, BATCH_OUTPUT))}, not "
                f"{show(purpose)}",
                param="purpose",
            )
        records = self._kept.store.list(request.tenant)
        found = [record for record in records if purpose in (None, record.purpose)]
        return Response(200, list_page(found, page, file_object))

    async def get(self, request: Request, dialect: Dialect) -> Response:
        return _answer(self._find(request))

    async def content(self, request: Request, dialect: Dialect) -> Response | None:
        """Sends the content of a file, or the range of it that is asked for."""
        record = self._find(request)
        store = self._kept.store
        return await send_content(request, record, store.path_of(record.id), store.threads)

    async def delete(self, request: Request, dialect: Dialect) -> Response:
        record = self._find(request)
        try:
            await self._kept.store.delete(request.tenant, record.id)
        except OSError as error:
            raise StateFailed(f"the file cannot be deleted: {error.strerror or error}") from None
        body = {"id": record.id, "object": "file", "deleted": True}
        return Response(200, orjson.dumps(body))

    def _find(self, request: Request) -> FileRecord:
        id = request.path_params["id"]
        record = self._kept.store.find(request.tenant, id)
        if record is None:
            raise no_such_file(id)
        return record


def _answer(record: FileRecord) -> Response:
    return Response(200, orjson.dumps(file_object(record)))


def _expires_after(fields: Mapping[str, str]) -> dict[str, object] | None:
    """Returns `expires_after`, of which a form has each member by itself."""
    members: dict[str, object] = {}
    for name in ("anchor", "seconds"):
        text = fields.get(f"expires_after[{name}]")
        if text is not None:
            is_number = name == "seconds" and text.isascii() and text.isdigit() and len(text) < 17
            members[name] = int(text) if is_number else text
    return members or None
