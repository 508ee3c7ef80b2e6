"""What clients are told of a batch that could not go on."""

from __future__ import annotations

import pytest

from fastovms.batches.batch_faults import (
    first_error,
    lost_input,
    raise_disk_error,
    server_fault,
    too_many_ends,
)
from fastovms.errors import EngineFailed

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
    raise_disk_error(None)
    with pytest.raises(OSError, match="full"):
        raise_disk_error(GROUP)
    with pytest.raises(ZeroDivisionError):
        raise_disk_error(ZeroDivisionError())
    assert str(first_error(GROUP)) == "full"
