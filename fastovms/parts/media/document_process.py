"""The process that reads one PDF: `python -m fastovms.parts.media.document_process DESCRIPTOR`.

A document may take a reader any time and memory: it costs only this process.
"""

from __future__ import annotations

import os
import resource
import sys
from threading import Lock
from typing import Final

from fastovms.backends.processes import (
    ChildProcess,
    connect_to_parent,
    limit_time,
    set_soft_limit,
)
from fastovms.errors import BackendUnavailable, InvalidField
from fastovms.parts.media.documents import read_pdf

_MAX_MEMORY: Final = 2**30
_MAX_SECONDS: Final = 15
"""CPU seconds that one document may take."""

_NICENESS: Final = 5
_MARGIN: Final = 5.0
"""Seconds beyond its limit in which a process must end."""


class PdfProcesses:
    """Reads PDFs, each in a process of its own. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._children: set[ChildProcess] = set()
        self._is_closed = False

    def read(self, data: bytes, name: str, max_pages: int) -> str:
        """Returns the text of a PDF as `documents.read_pdf` does. Blocks until the process that
        reads it has ended. Raises InvalidField if the document cannot be read, or takes too much
        time or memory; BackendUnavailable if no process can be started, or the reader is closed."""
        try:
            child = self._start()
        except OSError as error:
            reason = error.strerror or error
            raise BackendUnavailable(f"no document can be read now: {reason}") from error
        try:
            child.connection.send((name, max_pages))
            child.connection.send_bytes(data)
            if child.connection.poll(10 * _MAX_SECONDS + _MARGIN):
                is_read, text = child.connection.recv()
                if is_read:
                    return str(text)
                raise InvalidField(text, param=name)
        except (EOFError, ConnectionError):
            pass  # the process has ended at a limit
        finally:
            child.kill()
            child.connection.close()
            child.wait()
            with self._lock:
                self._children.discard(child)
        self._check_open()
        raise InvalidField(
            f"{name} cannot be read: it takes too much time or memory, or is damaged", param=name
        )

    def close(self) -> None:
        """Kills the processes. Documents that are being read then fail, and later calls are
        refused."""
        with self._lock:
            self._is_closed = True
            for child in self._children:
                child.kill()

    def _start(self) -> ChildProcess:
        with self._lock:
            self._check_open()
            child = ChildProcess("fastovms.parts.media.document_process")
            self._children.add(child)
        return child

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable("no document is read any more: the server is shutting down")


def main() -> None:
    connection = connect_to_parent(sys.argv)
    name, max_pages = connection.recv()
    data = connection.recv_bytes()
    set_soft_limit(resource.RLIMIT_AS, _MAX_MEMORY)
    limit_time(_MAX_SECONDS)
    os.nice(_NICENESS)
    try:
        answer = True, read_pdf(data, name, max_pages)
    except InvalidField as error:
        answer = False, error.message
    except MemoryError:
        answer = False, f"{name} takes too much memory"
    connection.send(answer)
    os._exit(0)


if __name__ == "__main__":
    main()
