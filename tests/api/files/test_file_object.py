"""What is told of a file."""

from __future__ import annotations

from openai.types import FileObject

from fastovms.api.files.file_object import file_object
from fastovms.files.file_record import FileRecord


def test_it_is_openais() -> None:
    record = FileRecord(
        id="file-1", tenant="a", name="b", purpose="batch", size=5, created_at=1, expires_at=9
    )
    told = file_object(record)
    assert FileObject(**told).model_dump() == told
    assert "a" not in told.values()
