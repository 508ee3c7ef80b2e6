"""Endpoints `/files`: uploads streamed to disk, and the content of stored files."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

from fastovms.api.body import one_of, show, wrong
from fastovms.api.dialect import AnswerSchema, Dialect, error_response
from fastovms.api.endpoint import ListPage, UrlQuery, json_response, list_page
from fastovms.api.unread import unknown_warning
from fastovms.api.uploads import FormReader, Uploads, UploadSink, read_form
from fastovms.errors import (
    BackendError,
    NotFound,
    Overloaded,
    RequestError,
    StateFailed,
)
from fastovms.http.messages import BodySink, HeaderPairs, Request, Response, Stream
from fastovms.parts.batches.store import BATCH_OUTPUT, PURPOSES, FileRecord, FileStore
from fastovms.system.disk import open_file
from fastovms.system.threads import DiskThreads


class FileForm(AnswerSchema, kw_only=True):
    """The form fields of an upload; `file` is a part with a file name."""

    file: str
    purpose: str


class FileObject(AnswerSchema, kw_only=True):
    """A stored file as the API returns it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(ListPage[FileObject]):
    """A page of the list of files."""


class DeletedFile(AnswerSchema, kw_only=True):
    """The answer of `DELETE /files/{id}`."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def file_object(record: FileRecord) -> FileObject:
    """Returns the API object of a file record."""
    return FileObject(
        id=record.id,
        bytes=record.size,
        created_at=record.created_at,
        expires_at=record.expires_at,
        filename=record.name,
        purpose=record.purpose,
    )


def no_such_file(id: str) -> NotFound:
    """Returns the error for an unknown file id."""
    return NotFound(f"No such File object: {id[:200]}", param="id")


_ANCHOR: Final = "created_at"
_SHORTEST: Final = 3600
_LONGEST: Final = 30 * 24 * 3600

BATCH_AGE: Final = 30 * 24 * 3600
"""Seconds after which a batch's input and output files expire by default, as in OpenAI's API."""


def seconds_of(given: Mapping[str, Any] | None, name: str) -> int | None:
    """Returns the seconds of an `expires_after` object; None = the object is not given. Raises
    InvalidField if a member is invalid. `name` is the field's name, for error messages."""
    if given is None:
        return None
    anchor, seconds = given.get("anchor"), given.get("seconds")
    if anchor != _ANCHOR:
        raise wrong(f"{name}.anchor", show(_ANCHOR), anchor)
    if type(seconds) is not int or not _SHORTEST <= seconds <= _LONGEST:
        raise wrong(f"{name}.seconds", f"an integer from {_SHORTEST} to {_LONGEST}", seconds)
    return seconds


_PIECE: Final = 256 * 1024
_TYPE: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


async def send_content(
    request: Request, record: FileRecord, path: Path, threads: DiskThreads
) -> Response | None:
    """Sends the content of a file or the requested byte range. Raises NotFound if the file no
    longer exists, for example because it has expired; StateFailed if it cannot be read."""
    wanted = byte_range(request.headers.get("range"), record.size)
    if wanted is None:
        fields = (("Content-Range", f"bytes */{record.size}"),)
        return Response(416, b"", _TYPE, fields)
    status = 200
    headers: HeaderPairs = (("Accept-Ranges", "bytes"),)
    if len(wanted) != record.size:
        span = f"bytes {wanted.start}-{wanted.stop - 1}/{record.size}"
        status, headers = 206, (*headers, ("Content-Range", span))
    content = _Content(path)
    try:
        # Read the first piece before the answer begins, so that the status can report an error.
        piece = await _read(threads, content, wanted)
        if len(wanted) <= _PIECE:
            return Response(status, piece, _TYPE, headers)
        stream = request.stream(
            status=status, content_type=_TYPE, headers=headers, length=len(wanted)
        )
        await _send(stream, threads, content, wanted, piece)
    except FileNotFoundError:
        raise no_such_file(record.id) from None
    except OSError as error:
        raise StateFailed(f"the file cannot be read: {error.strerror}") from None
    finally:
        threads.begin(content.close)
    return None


class _Content:
    """An open file whose blocking methods are called in threads.

    The first read opens the file. It is closed once, after the last read: a cancelled caller may
    leave a read running, whose file descriptor must not be reused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._in_use = threading.Lock()
        self._descriptor: int | None = None
        self._is_closed = False

    def read(self, size: int, position: int) -> bytes:
        with self._in_use:
            if self._is_closed:
                return b""
            if self._descriptor is None:
                self._descriptor = open_file(self._path, os.O_RDONLY)
            return os.pread(self._descriptor, size, position)

    def close(self) -> None:
        with self._in_use:
            self._is_closed = True
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)


def byte_range(asked: str | None, size: int) -> range | None:
    """Returns the byte range that a `Range` header requests; None = the range is outside the file.
    An invalid header or one with several ranges selects the whole file."""
    found = None if asked is None else _RANGE.fullmatch(asked.replace(" ", ""))
    if found is None or found.groups() == ("", ""):
        return range(size)
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return range(size)
    return range(start, end) if start < end else None


async def _send(
    stream: Stream, threads: DiskThreads, content: _Content, wanted: range, piece: bytes
) -> None:
    """Sends the wanted byte range, of which `piece` is the beginning."""
    writable = asyncio.Event()
    stream.on_writable = writable.set
    while piece:
        stream.send(piece)
        wanted = wanted[len(piece) :]
        if not wanted:
            stream.finish()
            return
        while not stream.writable and not stream.closed:
            writable.clear()
            await writable.wait()
        piece = await _read(threads, content, wanted)
    stream.abort()  # the file was truncated meanwhile


async def _read(threads: DiskThreads, content: _Content, wanted: range) -> bytes:
    """Reads the first piece of the wanted range. Raises OSError if the file cannot be read."""
    return await threads.run(content.read, min(_PIECE, len(wanted)), wanted.start)


_MAX_LISTED: Final = 10_000

Part = TypeVar("Part")


class StatePart(Generic[Part]):
    """A part of the server's state, or the reason why that part is not available.

    Args:
        name: a plural noun for the stored objects, such as "files".
        part: None = not available.
        is_fault: whether the part is configured but could not be opened.

    Attributes:
        reason: why the part is not available, for clients.
    """

    def __init__(
        self, name: str, part: Part | None, reason: str = "", *, is_fault: bool = False
    ) -> None:
        self._name = name
        self._part = part
        self.reason = reason
        self._is_fault = is_fault

    @property
    def is_open(self) -> bool:
        """Whether the part is available."""
        return self._part is not None

    @property
    def part(self) -> Part:
        """The part. Raises StateFailed if it could not be opened; RequestError if it is switched
        off."""
        if self._part is not None:
            return self._part
        if self._is_fault:
            raise StateFailed(f"{self._name} are not available yet: {self.reason}")
        raise RequestError(f"this server does not store {self._name}: {self.reason}")

    def open(self, part: Part) -> None:
        """Makes the part available."""
        self._part = part


def path_for(files: StatePart[FileStore], tenant: str, id: str) -> Path:
    """Returns the path of a tenant's file. Raises NotFound if there is no such file, and the errors
    of `StatePart.part`."""
    if files.part.find(tenant, id) is None:
        raise no_such_file(id)
    return files.part.path_of(id)


class Files:
    """The handlers of `/files`. Each raises NotFound for a file that is not stored on this server
    or belongs to another tenant."""

    def __init__(
        self, kept: StatePart[FileStore], new_id: Callable[[], str], unix_time: Callable[[], float]
    ) -> None:
        self._kept = kept
        self._new_id = new_id
        self._unix_time = unix_time
        self._uploads = Uploads()

    def open_upload(self, request: Request, dialect: Dialect) -> BodySink | Response:
        """Returns the sink for the body of an upload, or an error response if its headers are
        refused."""
        try:
            return self._open_upload(request, dialect)
        except (RequestError, BackendError) as error:
            return error_response(error, dialect)

    def _open_upload(self, request: Request, dialect: Dialect) -> UploadSink:
        store, owner = self._kept.part, request.sender
        if not store.has_room(owner):
            count = store.files.held(owner)
            message = f"you have {count} stored files, which is the limit: delete some of them"
            raise (
                RequestError(message)
                if count
                else Overloaded("the file storage is full; retry later")
            )
        return self._uploads.open(
            request,
            store.threads,
            store.bytes,
            lambda content_type: FormReader(
                content_type, store.new_partial(), store.config.max_file_size
            ),
            dialect,
        )

    async def create(self, request: Request, dialect: Dialect) -> Response:
        """Stores an uploaded file."""
        store, sink = self._kept.part, request.sink
        assert isinstance(sink, UploadSink)
        form = await read_form(sink, dialect)
        if isinstance(form, Response):
            return form
        purpose = one_of(form.fields.get("purpose"), PURPOSES, "purpose")
        if names := form.unknown(_UPLOAD_FIELDS):
            request.warnings = (unknown_warning(names),)
        age = seconds_of(_expires_after(form.fields), "expires_after")
        if age is None and purpose == "batch":
            age = BATCH_AGE
        now = int(self._unix_time())
        record = FileRecord(
            id=f"file-{self._new_id()}",
            tenant=request.caller.tenant,
            owner=request.sender,
            name=form.file_name or "",
            purpose=purpose,
            size=form.size,
            created_at=now,
            expires_at=None if age is None else now + age,
        )
        assert form.path is not None
        try:
            await store.add(form.path, record)
        except asyncio.CancelledError:
            store.drop(record.id)  # the client has disconnected without the file's id
            raise
        except OSError as error:
            raise StateFailed(f"the file cannot be stored: {error.strerror or error}") from None
        return json_response(file_object(record))

    async def list(self, request: Request, dialect: Dialect) -> Response:
        """Lists the tenant's files."""
        query = UrlQuery(request)
        page = query.page(usual=_MAX_LISTED, most=_MAX_LISTED)
        purpose = query.text("purpose")
        if purpose is not None:
            one_of(purpose, (*PURPOSES, BATCH_OUTPUT), "purpose")
        records = self._kept.part.list(request.caller.tenant)
        found = [record for record in records if purpose in (None, record.purpose)]
        return json_response(list_page(found, page, file_object))

    async def get(self, request: Request, dialect: Dialect) -> Response:
        """Returns the object of a file."""
        return json_response(file_object(self._find(request)))

    async def content(self, request: Request, dialect: Dialect) -> Response | None:
        """Sends the content of a file, or the requested byte range."""
        record = self._find(request)
        store = self._kept.part
        return await send_content(request, record, store.path_of(record.id), store.threads)

    async def delete(self, request: Request, dialect: Dialect) -> Response:
        """Deletes a file. Raises RequestError if an unfinished batch uses it."""
        record = self._find(request)
        try:
            await self._kept.part.delete(request.caller.tenant, record.id)
        except OSError as error:
            raise StateFailed(f"the file cannot be deleted: {error.strerror or error}") from None
        return json_response(DeletedFile(id=record.id))

    def _find(self, request: Request) -> FileRecord:
        id = request.path_params["id"]
        record = self._kept.part.find(request.caller.tenant, id)
        if record is None:
            raise no_such_file(id)
        return record


_UPLOAD_FIELDS: Final = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


def _expires_after(fields: Mapping[str, str]) -> dict[str, object] | None:
    """Returns the object `expires_after` of the form fields `expires_after[...]`; None = no such
    field."""
    members: dict[str, object] = {}
    for name in ("anchor", "seconds"):
        text = fields.get(f"expires_after[{name}]")
        if text is not None:
            is_number = name == "seconds" and text.isascii() and text.isdigit() and len(text) < 17
            members[name] = int(text) if is_number else text
    return members or None
