"""Sends the content of a file piece by piece, or a range of it (RFC 9110 14)."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Final

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
    try:
        descriptor = await threads.run(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StateFailed(f"the file cannot be read: {error.strerror}") from None
    try:
        if len(wanted) <= _PIECE:
            body = await _read(threads, descriptor, len(wanted), wanted.start)
            return Response(status, body, _TYPE, headers)
        stream = request.stream(
            status=status, content_type=_TYPE, headers=headers, length=len(wanted)
        )
        await _send(stream, threads, descriptor, wanted)
    finally:
        os.close(descriptor)
    return None


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


async def _send(stream: Stream, threads: DiskThreads, descriptor: int, wanted: range) -> None:
    writable = asyncio.Event()
    stream.on_writable = writable.set
    position = wanted.start
    while position < wanted.stop:
        piece = await _read(threads, descriptor, min(_PIECE, wanted.stop - position), position)
        if not piece:
            stream.abort()  # somebody has cut the file
            return
        position += len(piece)
        stream.send(piece)
        while not stream.writable and not stream.closed:
            writable.clear()
            await writable.wait()
    stream.finish()


async def _read(threads: DiskThreads, descriptor: int, size: int, position: int) -> bytes:
    try:
        return await threads.run(os.pread, descriptor, size, position)
    except OSError as error:
        raise StateFailed(f"the file cannot be read: {error.strerror}") from None
