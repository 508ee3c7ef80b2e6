"""Which `metadata` is taken; what is refused is in the tests of responses, too."""

from __future__ import annotations

import pytest

from fastovms.api.wire.metadata_field import read_metadata
from fastovms.errors import InvalidField


def test_limits() -> None:
    assert read_metadata(None) == {}
    assert len(read_metadata({str(number): "x" * 512 for number in range(16)})) == 16
    for given in ({"a": 1}, {"a": "x" * 513}, {"a" * 65: ""}, {str(n): "" for n in range(17)}):
        with pytest.raises(InvalidField, match="metadata"):
            read_metadata(given)
