"""Uploads: forms with a file, written to disk or memory as they arrive."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from fastovms.api.body import show
from fastovms.api.dialect import Dialect, error_response
from fastovms.api.unread import shown
from fastovms.config import MAX_FORM_OVERHEAD
from fastovms.errors import (
    InvalidField,
    Overloaded,
    RequestError,
    StateFailed,
)
from fastovms.fair_queue import Shares
from fastovms.http.gates import essence
from fastovms.http.messages import Request, Response
from fastovms.system.disk import UnnamedFile
from fastovms.system.threads import DiskThreads

logger = logging.getLogger(__name__)


_MAX_FIELDS: Final = 32
_MAX_VALUE: Final = 1024
_MAX_NAME: Final = 256
_FILE: Final = "file"


class FormReader:
    """Parses a multipart form with files, each in its own part. Its methods block, so call them in
    a thread. Raises RequestError if the header has no boundary.

    Args:
        content_type: the header, with the boundary.
        path: where the file is written; None = to an unnamed temporary file.
        max_size: the maximum size of the file in bytes.
        max_value: the maximum size of a text field in bytes.
        listed: the names of fields that may be repeated.
        files: the names of the parts that are files. The first is required.

    Attributes:
        fields: the text fields, by name.
        lists: the values of the fields that may be repeated, or whose names end in `[]`.
        unnamed: the unnamed files so far, by the names of their parts.
        file_name: the client's name of the last file; None = no file yet.
        path: the path of the file.
        size: the bytes of the last file so far.
        max_size: the maximum size of the file in bytes.
    """

    def __init__(
        self,
        content_type: str,
        path: Path | None,
        max_size: int,
        max_value: int = _MAX_VALUE,
        listed: Collection[str] = (),
        files: Sequence[str] = (_FILE,),
    ) -> None:
        self._listed = listed
        self._files = files
        self._seen: set[str] = set()
        self.fields: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {}
        self.unnamed: dict[str, UnnamedFile] = {}
        self.file_name: str | None = None
        self.size = 0
        self.path = path
        self.max_size = max_size
        self._max_value = max_value
        self._file: int | None = None
        self._header = self._value = b""
        self._name = ""
        self._text = bytearray()
        self._is_file = self._is_whole = False
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise RequestError("the Content-Type of a form must name its boundary")
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._on_header,
                    "on_header_value": self._on_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._begin_content,
                    "on_part_data": self._on_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise RequestError(f"the form cannot be read: {error}") from None

    @property
    def max_form(self) -> int:
        """The maximum size of the whole form in bytes."""
        return len(self._files) * self.max_size + MAX_FORM_OVERHEAD

    def feed(self, pieces: Sequence[bytes]) -> None:
        """Parses the next pieces. Raises RequestError if the form is invalid, and OSError if the
        file cannot be written."""
        try:
            for piece in pieces:
                self._parser.write(piece)
        except FormParserError as error:
            raise RequestError(f"the form cannot be read: {error}") from None

    def unknown(self, known: Collection[str]) -> list[str]:
        """Returns the names of fields that have a value and are not known."""
        given = {name: [value] for name, value in self.fields.items()} | self.lists
        return shown([name for name, values in given.items() if any(values) and name not in known])

    def finish(self) -> None:
        """Ends a form after its last piece; a file with a path is then synced to disk. Raises
        errors like `feed`."""
        if not self._is_whole:
            raise RequestError("the form ends before its last boundary")
        required = self._files[0]
        if required not in self._seen:
            raise InvalidField.about(required, "is required: a part with a file name")
        if self.path is not None and self._file is not None:
            os.fsync(self._file)
        self._close()

    def discard(self) -> None:
        """Deletes the file, unless it has been moved away."""
        self._close()
        self.unnamed.clear()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    # Callbacks of the parser

    def _begin_part(self) -> None:
        self._name, self._is_file = "", False
        self._header = self._value = b""
        self._text.clear()

    def _on_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._name = _decoded(options.get(b"name", b""), "the name of a part")
            name = options.get(b"filename")
            if name is not None or self._name == self._files[0]:
                self._begin_file(_decoded(name or b"", "the name of the file"))
        self._header = self._value = b""

    def _begin_file(self, name: str) -> None:
        part = self._name.removesuffix("[]")
        if part not in self._files:
            raise InvalidField(f"{self._name[:_MAX_NAME]} must not be a file", param=self._name)
        if part in self._seen:
            raise InvalidField(f"the form must have one {part}, not several", param=part)
        self._seen.add(part)
        if len(name) > _MAX_NAME:
            raise InvalidField(f"the name of the file must have at most {_MAX_NAME} characters")
        self.file_name, self._is_file = name or "upload", True
        if self.path is None:
            self._close()
            self.size = 0
            self.unnamed[part] = UnnamedFile()
            self._file = os.dup(self.unnamed[part].descriptor)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o600)

    def _begin_content(self) -> None:
        if not self._name:
            raise RequestError("each part of the form must have a name")
        num_fields = len(self.fields) + sum(map(len, self.lists.values()))
        if num_fields >= _MAX_FIELDS:
            raise RequestError(f"a form must have at most {_MAX_FIELDS} fields")
        if self._name in self.fields:
            raise InvalidField(f"{self._name[:_MAX_NAME]} must be given once", param=self._name)

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._text += data[start:end]
            if len(self._text) > self._max_value:
                raise InvalidField.about(self._name, f"must have at most {self._max_value} bytes")
            return
        self.size += end - start
        if self.size > self.max_size:
            raise FileTooLarge(self.max_size, self._name.removesuffix("[]"))
        assert self._file is not None
        rest = memoryview(data)[start:end]
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def _end_part(self) -> None:
        if self._is_file:
            return
        value = _decoded(bytes(self._text), self._name)
        name = self._name.removesuffix("[]")
        if name in self._listed or name != self._name:
            self.lists.setdefault(name, []).append(value)
        else:
            self.fields[self._name] = value

    def _end(self) -> None:
        self._is_whole = True


class FileTooLarge(RequestError):
    """The file of a form is larger than the limit."""

    def __init__(self, max_size: int, part: str = _FILE) -> None:
        super().__init__(f"the {part} is larger than {max_size} bytes", param=part)


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RequestError(f"{what} must be UTF-8") from None


_MAX_WAITING: Final = 1024 * 1024
"""Bytes that may wait for the thread before no more is read from the client."""

MIN_RATE: Final = 16 * 1024
"""Bytes a second that an upload must send."""


class UploadSink:
    """Implements `BodySink`: receives a form with one file.

    Args:
        threads: read and write the form.
        shares: the uploaded bytes of all owners.
        on_close: called when the upload is closed and its temporary file moved or deleted.
        dialect: the format of refusals.
        owner: the API key or address for which the upload counts.
        min_rate: returns the minimum rate of the client, in bytes per second.
    """

    def __init__(
        self,
        threads: DiskThreads,
        shares: Shares,
        reader: FormReader,
        on_close: Callable[[], None],
        dialect: Dialect,
        *,
        owner: str = "",
        min_rate: Callable[[], float] = lambda: MIN_RATE,
    ) -> None:
        self.max_size = reader.max_form
        self._owner = owner
        self._min_rate = min_rate
        self.fault: Response | None = None
        self._dialect = dialect
        self.on_change: Callable[[], None] | None = None
        self._threads = threads
        self._shares = shares
        self._reader = reader
        self._on_close = on_close
        self._pieces: list[bytes] = []
        self._num_waiting = 0
        self._num_reserved = 0
        self._work: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_closed = False

    @property
    def min_rate(self) -> float:
        return self._min_rate()

    @property
    def is_full(self) -> bool:
        return self._num_waiting > _MAX_WAITING

    def write(self, piece: bytes) -> None:
        if self._error is not None:
            return
        if not self._shares.take(self._owner, len(piece)):
            limit, held = self._shares.free, self._shares.held(self._owner)
            if held + len(piece) > limit:
                self._fail(
                    RequestError(f"your files together would take more than {limit} bytes"), 413
                )
            else:
                self._fail(Overloaded(f"your files may have {held} bytes for now"), 429)
            return
        self._num_reserved += len(piece)
        self._pieces.append(piece)
        self._num_waiting += len(piece)
        self._begin()

    async def form(self) -> FormReader:
        """Returns the form once it is written to disk. Raises RequestError if the form is invalid,
        and StateFailed if the disk fails."""
        while self._work is not None:
            await asyncio.wait([self._work])
        if self._error is None:
            self._work = work = self._threads.begin(self._reader.finish)
            work.add_done_callback(self._end_form)
            await asyncio.wait([work])
            try:
                work.result()
            except OSError as error:
                self._error = _disk_failed(error)
        if self._error is not None:
            raise self._error
        return self._reader

    def _end_form(self, work: asyncio.Future[None]) -> None:
        self._work = None
        work.exception()  # retrieve the error: the client may have disconnected
        if self._is_closed:
            self._discard()

    def close(self) -> None:
        """Deletes an upload that no handler has used, once its thread has finished."""
        if self._is_closed:
            return
        self._is_closed = True
        self.on_change = None
        self._pieces.clear()
        self._shares.give_back(self._owner, self._num_reserved)
        if self._work is None:
            self._discard()

    def _begin(self) -> None:
        if self._work is None and self._pieces:
            pieces, self._pieces = self._pieces, []
            self._work = self._threads.begin(self._reader.feed, pieces)
            self._work.add_done_callback(self._end)

    def _end(self, work: asyncio.Future[None]) -> None:
        self._work = None
        error = work.exception()
        if self._is_closed:
            self._discard()
        elif error is None:
            was_full = self.is_full
            self._num_waiting = sum(map(len, self._pieces))
            self._begin()
            if was_full and not self.is_full:
                self._notify()
        elif isinstance(error, RequestError):
            self._fail(error, 413 if isinstance(error, FileTooLarge) else 400)
        elif isinstance(error, OSError):
            self._fail(_disk_failed(error), 503)
        else:
            logger.error("files: an upload failed", exc_info=error)
            self._fail(StateFailed("the upload has failed"), 500)

    def _fail(self, error: Exception, status: int) -> None:
        self._error = error
        self.fault = replace(error_response(error, self._dialect), status=status)
        self._pieces.clear()
        self._num_waiting = 0
        # Not at once: this may be in the middle of what the client has sent.
        asyncio.get_running_loop().call_soon(self._notify)

    def _notify(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _discard(self) -> None:
        def discard() -> None:
            try:
                self._reader.discard()
            except OSError as error:
                logger.error("files: cannot delete an interrupted upload: %s", error)

        work = self._threads.begin(discard)
        work.add_done_callback(lambda work: self._on_close())


async def read_form(sink: UploadSink, dialect: Dialect) -> FormReader | Response:
    """Returns the form of an upload, or a refusal. Raises StateFailed like `UploadSink.form`."""
    try:
        return await sink.form()
    except RequestError as error:
        return sink.fault or error_response(error, dialect)


def _disk_failed(error: OSError) -> StateFailed:
    logger.error("files: cannot store a file: %s", error)
    return StateFailed(f"the file cannot be stored: {error.strerror or error}")


_FORM: Final = "multipart/form-data"

_MAX_UPLOADS: Final = 16
"""Uploads of one client at a time; of all others together, as many again."""


class Uploads:
    """Opens the sinks of uploads, up to a maximum number at a time."""

    def __init__(self) -> None:
        self._places = Shares.of_places(_MAX_UPLOADS)

    def open(
        self,
        request: Request,
        threads: DiskThreads,
        shares: Shares,
        read_form: Callable[[str], FormReader],
        dialect: Dialect,
    ) -> UploadSink:
        """Returns the sink of an upload. Raises RequestError if the body is not a form, and
        Overloaded if the client has too many uploads.

        Args:
            threads: read and write the form.
            shares: counts the bytes of the upload against its client's limit.
            read_form: returns the reader of a form, given the Content-Type.
        """
        content_type = request.headers.get("content-type") or ""
        if essence(content_type) != _FORM:
            raise RequestError(f"Content-Type must be {_FORM}, not {show(content_type)}")
        owner = request.sender
        if not self._places.may_take(owner):
            count = self._places.held(owner)
            raise Overloaded(
                f"{count} of your files are being uploaded already, which is the limit"
            )
        reader = read_form(content_type)
        self._places.hold(owner)
        return UploadSink(
            threads,
            shares,
            reader,
            partial(self._places.give_back, owner),
            dialect,
            owner=owner,
            min_rate=partial(self._min_rate, owner),
        )

    def _min_rate(self, owner: str) -> float:
        """Returns the minimum rate of each upload of an owner, in bytes per second. If the maximum
        number of uploads is reached, it grows with the owner's number of uploads, so that slow
        uploads cannot block other owners for hours."""
        is_full = self._places.used >= self._places.free
        return MIN_RATE * (self._places.held(owner) if is_full else 1)
