"""Decides what becomes of a batch that meets an error, and says it in words for its client."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from fastovms.batches.batch_record import BatchError, BatchRecord, BatchStatus
from fastovms.errors import FastovmsError
from fastovms.files.file_store import FileStore

logger = logging.getLogger(__name__)

_RETRY_DELAY: Final = 30.0
"""Seconds after which a batch goes on whose files could not be written."""

_MAX_RETRIES: Final = 3
"""How often a cancelled batch tries to write its files before it ends without them."""


class BatchFaults:
    """The faults of one batch: it goes on after those of a disk that may pass, and ends with any
    other."""

    def __init__(self, record: BatchRecord, files: FileStore) -> None:
        self._record = record
        self._files = files
        self._has_no_rest = asyncio.Event()
        self._num_retries = 0

    def is_passing(self, error: Exception) -> bool:
        """Whether it may help to try again. A cancelled batch does not do so for ever."""
        is_cancelled = self._record.outcome is BatchStatus.CANCELLED
        may_retry = not is_cancelled or self._num_retries < _MAX_RETRIES
        return isinstance(error, OSError) and may_retry and not self._has_lost_input()

    async def rest(self) -> None:
        """Waits before a retry, of a batch that is not cancelled until `end_rest`."""
        if self._record.outcome is BatchStatus.CANCELLED:
            self._num_retries += 1
            await asyncio.sleep(_RETRY_DELAY)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_no_rest.wait(), _RETRY_DELAY)

    def end_rest(self) -> None:
        """Has the batch go on: it is cancelled."""
        self._has_no_rest.set()

    def blame(self, error: Exception) -> None:
        """Has the batch end with an error, of which the log has all."""
        record = self._record
        if self._has_lost_input():
            fault = lost_input(record.input_file_id)
            logger.error("%s cannot go on: %s", record.id, fault.message)
        else:
            fault = server_fault(error)
            logger.error("%s cannot go on", record.id, exc_info=error)
        self.end_with(fault)

    def end_with(self, fault: BatchError) -> None:
        """Notes what ends the batch: it has failed, unless it was to end without that."""
        record = self._record
        record.errors = [*record.errors, fault]
        if record.outcome is not BatchStatus.CANCELLED:
            record.outcome = BatchStatus.FAILED

    def _has_lost_input(self) -> bool:
        """Whether the input is needed, and its content is gone."""
        if self._record.status is BatchStatus.FINALIZING:
            return False
        return not self._files.path_of(self._record.input_file_id).is_file()


def lost_input(file_id: str) -> BatchError:
    """Returns the fault of a batch whose input is gone from the disk."""
    message = f"the content of the input file {file_id} is gone"
    return BatchError("input_file_not_found", message, "input_file_id")


def too_many_ends(count: int) -> BatchError:
    """Returns the fault of a batch during which the server has ended so often in a row: the batch
    may be what ends it."""
    message = f"the server has ended {count} times while the batch ran"
    return BatchError("server_error", message)


def server_fault(error: Exception) -> BatchError:
    """Returns the fault of a batch that met an error. What is no fault of the disk or of the model
    is told by its name alone: the rest is insides."""
    cause = first_error(error)
    is_told = isinstance(cause, (OSError, FastovmsError))
    reason = str(cause) if is_told else f"internal server error ({type(cause).__name__})"
    return BatchError("server_error", f"the batch could not go on: {reason}")


def cause_of_end(error: BaseException) -> BaseException:
    """Returns what to raise of an error that has ended the lines of a batch: of several at once, a
    fault of the disk alone, which may pass."""
    if isinstance(error, ExceptionGroup):
        disk, _ = error.split(OSError)
        return error if disk is None else OSError(str(first_error(disk)))
    return error


def first_error(error: Exception) -> Exception:
    """Returns the first of a group of errors, or the one that it is."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
