"""Ids that clients make up."""

from __future__ import annotations

import pytest

from fastovms.api.wire.client_ids import MAX_ID, check_id
from fastovms.errors import InvalidField


@pytest.mark.parametrize("text", ["a", "~!@/", "x" * MAX_ID])
def test_what_can_stand_in_a_header(text: str) -> None:
    assert check_id(text, "id") == text


@pytest.mark.parametrize("text", ["", "a b", "é", "\x7f", "a\n", "x" * (MAX_ID + 1)])
def test_what_cannot(text: str) -> None:
    with pytest.raises(InvalidField, match="must have 1 to 256 visible ASCII") as caught:
        check_id(text, "items[0].id")
    assert caught.value.param == "items[0].id"
    assert len(caught.value.message) < 400
