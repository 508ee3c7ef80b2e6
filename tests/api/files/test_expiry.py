"""After how long files expire."""

from __future__ import annotations

import pytest

from fastovms.api.files.expiry import seconds_of
from fastovms.errors import InvalidField


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), ({"anchor": "created_at", "seconds": 3600}, 3600)],
)
def test_what_is_taken(given, seconds) -> None:
    assert seconds_of(given, "a") == seconds


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "a.anchor"),
        ({"anchor": "last_used_at", "seconds": 3600}, "a.anchor"),
        ({"anchor": "created_at"}, "a.seconds"),
        ({"anchor": "created_at", "seconds": 3599}, "a.seconds"),
        ({"anchor": "created_at", "seconds": 2592001}, "a.seconds"),
        ({"anchor": "created_at", "seconds": "3600"}, "a.seconds"),
    ],
)
def test_what_is_refused(given, param) -> None:
    with pytest.raises(InvalidField) as caught:
        seconds_of(given, "a")
    assert caught.value.param == param
