"""What is told of a batch."""

from __future__ import annotations

import msgspec
from openai.types import Batch

from fastovms.api.batches.batch_object import batch_object
from fastovms.api.openapi.schemas.batch_schemas import BatchObject
from fastovms.batches.batch_record import BatchError
from tests.batches.test_batch_record import new_record


def test_it_is_openais_and_as_described() -> None:
    for fields in ({}, {"errors": [BatchError("a", "b", "c", 5)], "metadata": {"d": "e"}}):
        told = batch_object(new_record(tenant="secret", **fields))
        parsed = Batch(**told)
        assert parsed.model_dump() == told
        assert parsed.request_counts.total == 0
        msgspec.convert(told, BatchObject)
        assert "secret" not in str(told)
