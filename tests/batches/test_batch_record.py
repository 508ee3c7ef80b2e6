"""What is known of a batch survives as JSON."""

from __future__ import annotations

import msgspec

from fastovms.batches.batch_record import BatchError, BatchRecord, BatchStatus


def new_record(**fields) -> BatchRecord:
    return BatchRecord(
        **{
            "id": f"batch_{'ab' * 16}",
            "tenant": "",
            "endpoint": "/v1/x",
            "input_file_id": "file-in",
            "completion_window": "24h",
            "created_at": 1000,
            "expires_at": 5000,
            "output_id": "file-out",
            "error_id": "file-err",
            **fields,
        }
    )


def test_it_is_read_as_it_was_written() -> None:
    record = new_record(errors=[BatchError("a", "b", line=5)], metadata={"c": "d"})
    assert not record.has_ended
    record.enter(BatchStatus.CANCELLED, 1234.5)
    assert record.cancelled_at == 1234
    assert record.has_ended
    assert record.key == "ab" * 8
    assert msgspec.json.decode(msgspec.json.encode(record), type=BatchRecord) == record
