"""Which description a route has."""

from __future__ import annotations

import pytest

from fastovms.parts.openapi.operations import operation_name


@pytest.mark.parametrize(
    ("method", "pattern", "name", "prefix"),
    [
        ("GET", "/v1/models", "GET /models", "/v1"),
        ("GET", "/models", "GET /models", ""),
        ("GET", "/v3/v1/models/{id:path}", "GET /models/{id}", "/v3/v1"),
        ("POST", "/v3/tokenize", "POST /v3/tokenize", ""),
        ("POST", "/v1/tokenize", "POST /tokenize", "/v1"),
        ("GET", "/v1/config", "GET /v1/config", ""),
        ("GET", "/v2/models/{name:path}", "GET /v2/models/{name}", ""),
        ("GET", "/nowhere", "GET /nowhere", ""),
    ],
)
def test_names(method, pattern, name, prefix):
    assert operation_name(method, pattern) == (name, prefix)
