"""Settings of the server that follow from others."""

from __future__ import annotations

import pytest

from fastovms.config.http_config import HttpConfig


@pytest.mark.parametrize(
    ("max_body", "max_buffered", "largest"), [(10, 100, 10), (100, 100, 50), (100, 101, 50)]
)
def test_no_body_takes_more_than_half_of_what_all_may(
    max_body: int, max_buffered: int, largest: int
) -> None:
    config = HttpConfig(max_body=max_body, max_buffered_bodies=max_buffered)
    assert config.largest_body == largest
