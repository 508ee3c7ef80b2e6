"""Opens the file that takes the results of a batch without a server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastovms.batches.result_log import ForeignResult, ResultLog, ResultPaths
from fastovms.errors import ConfigurationError
from fastovms.system.disk_threads import DiskThreads
from fastovms.system.file_lock import lock_file


@asynccontextmanager
async def open_output(
    path: Path, key: str, last_line: int, threads: DiskThreads
) -> AsyncIterator[ResultLog]:
    """Opens a file that may have results of this batch already, for this process alone.

    Args:
        key, last_line, threads: as of `ResultLog`.

    Raises:
        ConfigurationError: it cannot be had, or has something else, which stays as it is.
    """
    try:
        lock = lock_file(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from None
    log = ResultLog(ResultPaths(path, path), key, last_line, threads)
    try:
        await threads.run(log.open, keeps_foreign=True)
        yield log
    except ForeignResult as error:
        raise ConfigurationError(
            f"line {error.number} of {path} is no result of this input: name a file that is not "
            "there yet"
        ) from None
    finally:
        try:
            await log.close()
        finally:
            os.close(lock)
