"""What is not kept is a 404 that names it."""

from __future__ import annotations

import pytest

from fastovms.api.responses.stored.missing import found, not_found, previous_not_found
from fastovms.errors import NotFound


def test_what_is_there_is_returned() -> None:
    assert found(b"", "Response", "resp_1") == b""


def test_what_is_missing_is_named() -> None:
    with pytest.raises(NotFound, match=r"^Response with id 'resp_1' not found\.$"):
        found(None, "Response", "resp_1")


def test_long_ids_are_cut_and_faults_named() -> None:
    error = not_found("Item", "x" * 300, param="input", code="c")
    assert (error.param, error.code) == ("input", "c")
    assert "x" * 200 + "'" in str(error)


def test_what_cannot_be_continued_has_a_code() -> None:
    error = previous_not_found("resp_1")
    assert (error.param, error.code) == ("previous_response_id", "previous_response_not_found")
