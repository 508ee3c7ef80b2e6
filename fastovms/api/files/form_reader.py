"""Reads a form with one file (multipart/form-data, RFC 7578) piece by piece, and writes the file to
the disk as it comes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from fastovms.errors import InvalidField, RequestError

MAX_OVERHEAD: Final = 64 * 1024
"""Bytes of a form besides its file."""

_MAX_FIELDS: Final = 16
_MAX_VALUE: Final = 1024
_MAX_NAME: Final = 256
_FILE: Final = "file"


class FormReader:
    """Reads one form. All of it blocks: it is for a thread.

    Args:
        content_type: with the boundary of the parts.
        path: where the file is written.
        max_size: bytes of the file.

    Attributes:
        fields: the parts that are texts, by name.
        file_name: what the client calls the file; None = none has come.
        path: where the file is.
        size: the file's bytes so far.

    Raises:
        RequestError: there is no boundary.
    """

    def __init__(self, content_type: str, path: Path, max_size: int) -> None:
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self.size = 0
        self.path = path
        self._max_size = max_size
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

    def feed(self, pieces: Sequence[bytes]) -> None:
        """Reads on.

        Raises:
            RequestError: the form is at fault.
            OSError: the file cannot be written.
        """
        try:
            for piece in pieces:
                self._parser.write(piece)
        except FormParserError as error:
            raise RequestError(f"the form cannot be read: {error}") from None

    def finish(self) -> None:
        """Ends a form whose last piece has come; its file is on the disk then. Raises as `feed`
        does."""
        if not self._is_whole:
            raise RequestError("the form ends before its last boundary")
        if self._file is None:
            raise InvalidField("file is required: a part with a file name", param=_FILE)
        os.fsync(self._file)
        self._close()

    def discard(self) -> None:
        """Throws the file away, unless it has been taken from its path."""
        self._close()
        self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    # Called by the parser

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
            if name is not None or self._name == _FILE:
                self._begin_file(_decoded(name or b"", "the name of the file"))
        self._header = self._value = b""

    def _begin_file(self, name: str) -> None:
        if self._name != _FILE:
            raise InvalidField(f"{self._name[:_MAX_NAME]} must not be a file", param=self._name)
        if self.file_name is not None:
            raise InvalidField("there must be one file, not several", param=_FILE)
        if len(name) > _MAX_NAME:
            raise InvalidField(f"the name of the file must have at most {_MAX_NAME} characters")
        self.file_name, self._is_file = name or "upload", True
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o600)

    def _begin_content(self) -> None:
        if not self._name:
            raise RequestError("each part of the form must have a name")
        if self._name in self.fields or len(self.fields) >= _MAX_FIELDS:
            raise RequestError(f"a form has at most {_MAX_FIELDS} fields, each of them once")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._text += data[start:end]
            if len(self._text) > _MAX_VALUE:
                raise InvalidField(
                    f"{self._name} must have at most {_MAX_VALUE} bytes", param=self._name
                )
            return
        self.size += end - start
        if self.size > self._max_size:
            raise FileTooLarge(self._max_size)
        assert self._file is not None
        rest = memoryview(data)[start:end]
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._name] = _decoded(bytes(self._text), self._name)

    def _end(self) -> None:
        self._is_whole = True


class FileTooLarge(RequestError):
    """The file of a form is larger than files may be."""

    def __init__(self, max_size: int) -> None:
        super().__init__(f"the file is larger than {max_size} bytes", param=_FILE)


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RequestError(f"{what} must be UTF-8") from None
