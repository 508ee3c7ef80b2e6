"""Sends the content of a file piece by piece, or a range of it (RFC 9110 14)."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from pathlib import Path
from typing import Final

from fastovms.api.files.file_object import no_such_file
from fastovms.errors import StateFailed
from fastovms.files.file_record import FileRecord
from fastovms.http.routing.messages import HeaderPairs, Request, Response, Stream
from fastovms.system.disk_threads import DiskThreads

_PIECE: Final = 256 * 1024
_TYPE: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


async def send_content(
    request: Request, record: FileRecord, path: Path, threads: DiskThreads
) -> Response | None:
    """Answers with the content.

    Raises:
        NotFound: it is gone, as when the file has expired meanwhile.
        StateFailed: it cannot be read.
    """
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
        # The first piece is read before the answer begins, which tells what is wrong then.
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
    """A content that threads read: all of it blocks. It is opened by the first read, and closed
    once, after the last: who is cancelled leaves a read running, and a descriptor that is closed
    meanwhile may be another file's by then."""

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
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, size, position)

    def close(self) -> None:
        with self._in_use:
            self._is_closed = True
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)


def byte_range(asked: str | None, size: int) -> range | None:
    """Returns which bytes are asked for; None = there are none of them. A header that is not
    understood, or asks for several ranges, counts as none."""
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
    """Sends what is wanted, of which `piece` is the beginning."""
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
    stream.abort()  # somebody has cut the file


async def _read(threads: DiskThreads, content: _Content, wanted: range) -> bytes:
    """Reads the first piece of what is wanted. Raises OSError."""
    return await threads.run(content.read, min(_PIECE, len(wanted)), wanted.start)
