"""Writes log lines on a separate thread, so that a full disk or a blocked pipe does not block the
event loop."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from fastovms.errors import ConfigurationError

_MAX_LINES: Final = 10_000
_LINGER: Final = 0.02
"""Seconds for which lines are collected, so that a busy server writes many at a time."""

_REDRAW: Final = 0.5
_CLEAR_LINE: Final = "\r\x1b[K"
_BAR_WIDTH: Final = 20


class LineWriter:
    """A text stream for `logging.StreamHandler` and for access logs, written by a thread. Lines
    that arrive faster than they can be written are dropped and counted. `path` is the file to
    append to; None = stderr. Raises ConfigurationError if the file cannot be opened."""

    def __init__(self, path: Path | None = None, *, max_lines: int = _MAX_LINES) -> None:
        self._path = path
        self._max_lines = max_lines
        self._stream = self._open()
        self._next_stream: TextIO | None = None
        self._lock = threading.Lock()
        self._pending: list[str] = []
        self._num_dropped = 0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._busy_since: float | None = None
        self._has_bar = False
        self._thread: threading.Thread | None = None

    def write_line(self, line: str) -> None:
        """Queues a line, without a line feed at the end, for writing."""
        self.write(f"{line}\n")

    def write(self, text: str) -> None:
        """Queues complete lines for writing."""
        with self._lock:
            if len(self._pending) >= self._max_lines:
                self._num_dropped += 1
                return
            self._pending.append(text)
            if len(self._pending) > 1 and self._thread is not None:
                return
            self._start()
        self._wake.set()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="log", daemon=True)
            thread.start()  # if this fails, the next line tries again
            self._thread = thread

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Shows a moving bar and the elapsed seconds below the log while the block runs, if the log
        is written to a terminal."""
        if not self._stream.isatty():
            yield
            return
        with self._lock:
            self._start()
            self._busy_since = time.monotonic()
        self._wake.set()
        try:
            yield
        finally:
            self._busy_since = None
            self._wake.set()

    def flush(self) -> None:
        """Does nothing: `logging` calls it after every line, and must not wait."""

    def reopen(self) -> None:
        """Opens the file again, after log rotation has moved it. Raises ConfigurationError if the
        file cannot be opened; the old one stays in use."""
        if self._path is None:
            return
        stream: TextIO | None = self._open()
        with self._lock:
            stream, self._next_stream = self._next_stream, stream
        if stream is not None:
            stream.close()

    def close(self, timeout: float = 1.0) -> None:
        """Waits until all queued lines are written, for at most `timeout` seconds."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        else:
            self._close_stream()

    def _open(self) -> TextIO:
        if self._path is None:
            return sys.stderr
        try:
            return self._path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigurationError(
                f"cannot write the log {self._path}: {error.strerror or error}"
            ) from None

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(None if self._busy_since is None else _REDRAW)
            self._closing.wait(_LINGER)
            self._wake.clear()
            self._write_pending()
        self._close_stream()

    def _write_pending(self) -> None:
        with self._lock:
            lines, self._pending = self._pending, []
            num_dropped, self._num_dropped = self._num_dropped, 0
            next_stream, self._next_stream = self._next_stream, None
        if next_stream is not None:
            self._close_stream()
            self._stream = next_stream
        if num_dropped:
            lines.append(f"{num_dropped} log lines were dropped: they came too fast\n")
        text, since = "".join(lines), self._busy_since
        if self._has_bar:
            text = f"{_CLEAR_LINE}{text}"
        self._has_bar = since is not None
        if since is not None:
            text += _bar(time.monotonic() - since)
        try:
            self._stream.write(text)
            self._stream.flush()
        except Exception:
            # Perhaps the disk is full. The error cannot be logged elsewhere; it is reported later.
            with self._lock:
                self._num_dropped += len(lines)

    def _close_stream(self) -> None:
        if self._path is not None:
            self._stream.close()


def _bar(seconds: float) -> str:
    """Returns a progress bar whose mark moves back and forth, for the elapsed seconds."""
    place = int(seconds / _REDRAW) % (2 * _BAR_WIDTH)
    place = min(place, 2 * _BAR_WIDTH - place)
    return f"[{' ' * place}###{' ' * (_BAR_WIDTH - place)}] {seconds:.0f} s"
