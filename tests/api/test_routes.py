"""Tests of the table of endpoints."""

from __future__ import annotations

import pytest

from fastovms.http.routing import Match


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/v2/models/org/m/versions/2/ready", {"name": "org/m", "version": "2"}),
        ("/v2/models/org/m/ready", {"name": "org/m"}),
        ("/v2/models/org/m", {"name": "org/m"}),
        ("/v1/conversations/c/items/i", {"id": "c", "item_id": "i"}),
        ("/v1/responses/r/input_items", {"id": "r"}),
    ],
)
async def test_the_longer_pattern_goes_first(make_api, path, params):
    match = make_api().router.match("GET", path)
    assert isinstance(match, Match)
    assert match.path_params == params


@pytest.mark.parametrize("path", ["/completions", "/v3/v3/completions", "/v1/health", "/v2/v1"])
async def test_there_is_no_other(make_api, path):
    assert not isinstance(make_api().router.match("POST", path), Match)
