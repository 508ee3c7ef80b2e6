"""Takes the body of an upload while it arrives, and hands it to a thread that reads and writes
it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from fastovms.api.files.form_reader import MAX_OVERHEAD, FileTooLarge, FormReader
from fastovms.errors import Overloaded, RequestError, StateFailed
from fastovms.files.file_store import FileStore

logger = logging.getLogger(__name__)

_MAX_WAITING: Final = 1024 * 1024
"""Bytes that may wait for the thread before no more is read from the client."""

MIN_RATE: Final = 16 * 1024
"""Bytes a second that an upload must send."""


class UploadSink:
    """Implements `BodySink`: one form with one file.

    Args:
        on_close: is called when nothing of it is left but the file, if that was taken.
        owner: the key or address in whose share it counts.
        min_rate: returns how many bytes a second the client must send now.
    """

    def __init__(
        self,
        store: FileStore,
        reader: FormReader,
        on_close: Callable[[], None],
        *,
        owner: str = "",
        min_rate: Callable[[], float] = lambda: MIN_RATE,
    ) -> None:
        self.max_size = store.config.max_file_size + MAX_OVERHEAD
        self._owner = owner
        self._min_rate = min_rate
        self.fault: tuple[int, str] | None = None
        self.on_change: Callable[[], None] | None = None
        self._store = store
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
        if not self._store.reserve(len(piece), self._owner):
            limit, held = self._store.config.max_files_size, self._store.bytes.held(self._owner)
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
        """Returns the form once all of it is on the disk.

        Raises:
            RequestError: the form is at fault.
            StateFailed: the disk is.
        """
        while self._work is not None:
            await asyncio.wait([self._work])
        if self._error is None:
            self._work = work = self._store.threads.begin(self._reader.finish)
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
        work.exception()  # who has left does not ask for it
        if self._is_closed:
            self._discard()

    def close(self) -> None:
        """Throws away what nobody has taken, once no thread works on it any more."""
        if self._is_closed:
            return
        self._is_closed = True
        self.on_change = None
        self._pieces.clear()
        self._store.give_back(self._num_reserved, self._owner)
        if self._work is None:
            self._discard()

    def _begin(self) -> None:
        if self._work is None and self._pieces:
            pieces, self._pieces = self._pieces, []
            self._work = self._store.threads.begin(self._reader.feed, pieces)
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
                self._tell()
        elif isinstance(error, RequestError):
            self._fail(error, 413 if isinstance(error, FileTooLarge) else 400)
        elif isinstance(error, OSError):
            self._fail(_disk_failed(error), 503)
        else:
            logger.error("an upload has failed", exc_info=error)
            self._fail(StateFailed("the upload has failed"), 500)

    def _fail(self, error: Exception, status: int) -> None:
        self._error = error
        self.fault = status, str(error)
        self._pieces.clear()
        self._num_waiting = 0
        # Not at once: this may be in the middle of what the client has sent.
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _discard(self) -> None:
        def discard() -> None:
            try:
                self._reader.discard()
            except OSError as error:
                logger.error("an upload cannot be deleted: %s", error)

        work = self._store.threads.begin(discard)
        work.add_done_callback(lambda work: self._on_close())


def _disk_failed(error: OSError) -> StateFailed:
    logger.error("a file cannot be kept: %s", error)
    return StateFailed(f"the file cannot be kept: {error.strerror or error}")
