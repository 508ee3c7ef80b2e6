"""What becomes of a batch that could not go on, and what clients are told of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fastovms.batches.batch_faults import (
    BatchFaults,
    cause_of_end,
    first_error,
    lost_input,
    server_fault,
    too_many_ends,
)
from fastovms.batches.batch_record import BatchStatus
from fastovms.errors import EngineFailed
from tests.batches.test_batch_record import new_record

GROUP = ExceptionGroup("lines", [ExceptionGroup("one", [OSError("full")]), ValueError("b")])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("full"), "full"),
        (EngineFailed("it hangs"), "it hangs"),
        (ZeroDivisionError("secret"), "internal server error (ZeroDivisionError)"),
        (GROUP, "full"),
    ],
)
def test_faults_of_the_server(error: Exception, told: str) -> None:
    fault = server_fault(error)
    assert fault.code == "server_error"
    assert fault.message == f"the batch could not go on: {told}"


def test_what_else_ends_a_batch() -> None:
    fault = lost_input("file-1")
    assert (fault.code, fault.param) == ("input_file_not_found", "input_file_id")
    assert "file-1" in fault.message
    assert "ended 7 times" in too_many_ends(7).message


def test_a_fault_of_the_disk_goes_before_others() -> None:
    assert isinstance(cause_of_end(GROUP), OSError)
    assert str(cause_of_end(GROUP)) == "full"
    for error in (ExceptionGroup("lines", [ValueError("b")]), ZeroDivisionError()):
        assert cause_of_end(error) is error
    assert str(first_error(GROUP)) == "full"


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def path_of(self, id: str) -> Path:
        return self.path / id


@pytest.fixture
def folder(tmp_path) -> Folder:
    (tmp_path / "file-in").touch()
    return Folder(tmp_path)


def test_which_faults_may_pass(folder) -> None:
    record = new_record()
    faults = BatchFaults(record, folder)
    assert faults.is_passing(OSError("full"))
    assert not faults.is_passing(ValueError("b"))
    folder.path_of("file-in").unlink()
    assert not faults.is_passing(OSError("full"))
    record.status = BatchStatus.FINALIZING
    assert faults.is_passing(OSError("full"))


def test_who_is_blamed(folder) -> None:
    record = new_record()
    faults = BatchFaults(record, folder)
    faults.blame(ZeroDivisionError())
    folder.path_of("file-in").unlink()
    faults.blame(OSError("no such file"))
    assert [error.code for error in record.errors] == ["server_error", "input_file_not_found"]
    assert record.outcome is BatchStatus.FAILED
    cancelled = new_record(outcome=BatchStatus.CANCELLED)
    BatchFaults(cancelled, folder).blame(ZeroDivisionError())
    assert cancelled.outcome is BatchStatus.CANCELLED


async def test_a_rest_ends_when_the_batch_is_cancelled(folder) -> None:
    record = new_record()
    faults = BatchFaults(record, folder)
    rest = asyncio.ensure_future(faults.rest())
    await asyncio.sleep(0.01)
    assert not rest.done()
    faults.end_rest()
    async with asyncio.timeout(20):
        await rest
