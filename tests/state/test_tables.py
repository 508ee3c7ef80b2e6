"""Rows of objects: how large they may be."""

from __future__ import annotations

import pytest

from fastovms.errors import TooLarge
from fastovms.state.store import (
    StoredItem,
    StoredResponse,
)
from tests.state.conftest import UNBOUNDED
from tests.state.transactions import do

TEXT = b"x" * 1000


@pytest.mark.parametrize(
    "operation",
    [
        lambda state: state.add_response("t", StoredResponse("b", TEXT), None),
        lambda state: state.add_response("t", StoredResponse("b", b"{}", events=TEXT), None),
        lambda state: state.add_response(
            "t", StoredResponse("b", b"{}", [StoredItem("i", TEXT)]), None
        ),
        lambda state: state.add_conversation("t", "d", b"{}", [StoredItem("i", TEXT)]),
        lambda state: state.add_items("t", "c", [StoredItem("i", TEXT)]),
        lambda state: state.update_conversation("t", "c", TEXT),
    ],
)
def test_what_is_larger_than_everything_may_be_drives_nothing_out(make_database, operation):
    database = make_database(UNBOUNDED._replace(max_bytes=1000))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", []))
    totals = database.totals
    with pytest.raises(TooLarge, match="1000"):
        do(database, operation)
    assert database.evict() is False
    assert database.totals == totals
    database.check()
