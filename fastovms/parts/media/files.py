"""Replaces the documents of requests by their texts."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fastovms.api.body import FairThread, wrong
from fastovms.api.client_request import RequestDocument
from fastovms.errors import InvalidField, RequestError, StateFailed, shortage_of
from fastovms.http.messages import Request
from fastovms.parts.media.documents import MAX_TEXT, can_read_pdf, decode_text, is_pdf
from fastovms.parts.media.fetch import decode_base64, decode_data_url, too_large
from fastovms.parts.media.pdf_reader import PdfProcesses
from fastovms.server_config import MediaConfig
from fastovms.system.disk import open_file

FindFile = Callable[[str, str], Awaitable[Path]]
"""Returns the path of a tenant's file, given tenant and file id. Raises RequestError or
StateFailed."""

ReadPdf = Callable[[bytes, str, int], str]
"""Returns the text of a PDF, given its content, its request field and the maximum pages. Called in
a thread."""

_MAX_CACHED: Final = 16 * 1024 * 1024
"""The maximum characters of all cached PDF texts; clients send a document again with each turn."""

_MAX_TITLE: Final = 200
_MAX_DOCUMENTS: Final = 100
"""The maximum number of documents of a request; each takes a turn of the thread."""


class Documents:
    """Reads documents in a thread, one at a time; clients take turns. Use it with one event loop.

    Args:
        find_file: finds an uploaded file.
        read_pdf: reads a PDF within limits of time and memory.
        close_reader: releases the resources of `read_pdf`.
    """

    def __init__(
        self,
        config: MediaConfig,
        find_file: FindFile,
        read_pdf: ReadPdf,
        close_reader: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._find_file = find_file
        self._read_pdf = read_pdf
        self._close_reader = close_reader
        self._thread: FairThread[str] = FairThread("documents", per_client=32, total=128)
        self._texts: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        self._num_chars = 0

    async def read(self, request: Request, given: Sequence[RequestDocument]) -> int:
        """Passes each document its text, and returns the number of characters of all texts, which
        is bounded because a request may name one file many times. A document of an earlier turn
        that cannot be read stays unchanged. Raises RequestError if a new document cannot be read or
        there are too many; StateFailed if stored files cannot be read; Overloaded if too many
        documents wait."""
        if len(given) > _MAX_DOCUMENTS:
            place = given[_MAX_DOCUMENTS].place
            raise InvalidField(
                f"{place}: a request must have at most {_MAX_DOCUMENTS} files, not {len(given)}",
                param=place,
            )
        num_chars = 0
        for document in given:
            try:
                text = await self._text(request, document)
                self._check_length(document.place, num_chars + len(text))
            except (RequestError, StateFailed):
                if document.is_new:
                    raise
                continue
            document.take(text)
            num_chars += len(text)
        return num_chars

    def _check_length(self, place: str, num_chars: int) -> None:
        most = self._config.max_document_bytes + MAX_TEXT
        if num_chars > most:
            raise InvalidField(
                f"{place}: the files of a request must have at most {most} characters in all, not "
                f"{num_chars}",
                param=place,
            )

    def close(self) -> None:
        """Rejects waiting documents, and ends the thread after the current one."""
        self._thread.close()
        self._close_reader()

    async def _text(self, request: Request, document: RequestDocument) -> str:
        members, place, tenant = document.members, document.place, request.caller.tenant
        data, file_id = members.get(document.data_member), members.get("file_id")
        title = members.get("filename")
        if title is not None and not isinstance(title, str):
            raise wrong(f"{place}.filename", "a string", title)
        if data is not None and file_id is not None:
            raise InvalidField(
                f"{place} must have {document.data_member} or file_id, not both", param=place
            )
        if data is not None:
            name = f"{place}.{document.data_member}"
            if not isinstance(data, str):
                raise wrong(name, "a string", data)
            call = partial(self._decoded, data, name, tenant)
        elif file_id is not None:
            name = f"{place}.file_id"
            if not isinstance(file_id, str):
                raise wrong(name, "a string", file_id)
            call = partial(self._stored, await self._find_file(tenant, file_id), name, tenant)
        else:
            raise InvalidField(
                f"{place} must have {document.data_member} or file_id: files are not fetched",
                param=place,
            )
        text = await self._thread.run(request.sender, call)
        return f"File {title[:_MAX_TITLE]}:\n{text}" if title else text

    # The following methods run in the worker thread.

    def _decoded(self, data: str, name: str, tenant: str) -> str:
        most = self._config.max_document_bytes
        if data.startswith("data:"):
            content = decode_data_url(data, name, max_bytes=most, is_image=False)
            return self._read(content, name, tenant)
        return self._read(decode_base64(data, name, max_bytes=most), name, tenant)

    def _stored(self, path: Path, name: str, tenant: str) -> str:
        most = self._config.max_document_bytes
        try:
            with open(open_file(path, os.O_RDONLY), "rb") as file:
                data = file.read(most + 1)
        except OSError as error:
            fault = InvalidField(f"{name}: the file cannot be read", param=name)
            raise shortage_of(error) or fault from error
        if len(data) > most:
            raise too_large(name, most)
        return self._read(data, name, tenant)

    def _read(self, data: bytes, name: str, tenant: str) -> str:
        if not is_pdf(data):
            return decode_text(data, name)
        if not can_read_pdf():
            raise InvalidField(
                f"{name} is a PDF, which this server does not read: install fastovms with the "
                "extra documents",
                param=name,
            )
        key = (
            tenant,
            hashlib.sha256(data).digest(),
        )  # per tenant, because response times reveal cache hits
        text = self._texts.get(key)
        if text is None:
            text = self._read_pdf(data, name, self._config.max_document_pages)
            self._texts[key] = text
            self._num_chars += len(text)
            while self._num_chars > _MAX_CACHED:
                _, oldest = self._texts.popitem(last=False)
                self._num_chars -= len(oldest)
        self._texts.move_to_end(key)
        return text


def documents(config: MediaConfig, find_file: FindFile) -> Documents:
    """Returns a reader of documents that reads PDFs in separate processes."""
    processes = PdfProcesses()
    return Documents(config, find_file, processes.read, processes.close)
