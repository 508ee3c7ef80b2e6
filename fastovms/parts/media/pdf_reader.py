"""Reads PDFs in separate processes, which run `serve`.

A malicious document may take a reader unlimited time and memory; a process can be limited.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from fastovms.backends.processes import (
    NICENESS,
    ChildProcess,
    ProcessPool,
    limit_time,
    set_soft_limit,
)
from fastovms.errors import InvalidField
from fastovms.parts.media.documents import read_pdf

_MAX_MEMORY: Final = 2**30
_MAX_SECONDS: Final = 15
"""The maximum CPU seconds for one document."""

_MARGIN: Final = 5.0
"""Seconds after its CPU limit within which a process must end."""


class PdfProcesses(ProcessPool):
    """Reads PDFs one after another, each in its own process."""

    def __init__(self, start: Callable[[], ChildProcess] | None = None) -> None:
        super().__init__(("document", "read"), start or partial(ChildProcess, __name__))

    def read(self, data: bytes, name: str, max_pages: int) -> str:
        """Returns the text of a PDF as `documents.read_pdf` does. Blocks until the reading process
        ends. Raises InvalidField if the document cannot be read, or takes too much time or memory;
        BackendUnavailable if no process can be started, or the reader is closed."""
        try:
            with self.process() as child:
                child.is_last = True
                child.connection.send((name, max_pages))
                child.connection.send_bytes(data)
                if not child.connection.poll(10 * _MAX_SECONDS + _MARGIN):
                    raise EOFError
                is_read, text = child.connection.recv()
        except (EOFError, ConnectionError) as error:  # the process has ended at a limit
            raise InvalidField(
                f"{name} cannot be read: it takes too much time or memory, or is corrupt",
                param=name,
            ) from error
        if not is_read:
            raise InvalidField(text, param=name)
        return str(text)


def serve(connection: Connection[Any, Any]) -> None:
    """Reads one document that `PdfProcesses` sends, and answers with its text or error."""
    name, max_pages = connection.recv()
    data = connection.recv_bytes()
    set_soft_limit(resource.RLIMIT_AS, _MAX_MEMORY)
    limit_time(_MAX_SECONDS)
    os.nice(NICENESS)
    try:
        answer = True, read_pdf(data, name, max_pages)
    except InvalidField as error:
        answer = False, error.message
    except MemoryError:
        answer = False, f"{name} takes too much memory"
    connection.send(answer)
