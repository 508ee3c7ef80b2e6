"""Says what has ended a batch before all of its lines were done, in words for its client."""

from __future__ import annotations

from fastovms.batches.batch_record import LineError
from fastovms.errors import FastovmsError


def lost_input(file_id: str) -> LineError:
    """Returns the fault of a batch whose input is gone from the disk."""
    message = f"the content of the input file {file_id} is gone"
    return LineError("input_file_not_found", message, "input_file_id")


def too_many_ends(count: int) -> LineError:
    """Returns the fault of a batch during which the server has ended so often in a row: the batch
    may be what ends it."""
    message = f"the server has ended {count} times while the batch ran"
    return LineError("server_error", message)


def server_fault(error: Exception) -> LineError:
    """Returns the fault of a batch that met an error. What is no fault of the disk or of the model
    is told by its name alone: the rest is insides."""
    cause = first_error(error)
    is_told = isinstance(cause, (OSError, FastovmsError))
    reason = str(cause) if is_told else f"internal server error ({type(cause).__name__})"
    return LineError("server_error", f"the batch could not go on: {reason}")


def raise_disk_error(error: BaseException | None) -> None:
    """Raises what has ended the lines of a batch."""
    if isinstance(error, ExceptionGroup):
        disk, _ = error.split(OSError)
        raise OSError(str(first_error(disk))) if disk is not None else error
    if error is not None:
        raise error


def first_error(error: Exception) -> Exception:
    """Returns the first of a group of errors, or the one that it is."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
