"""Which endpoints batches may ask."""

from __future__ import annotations

import pytest

from fastovms.errors import MalformedBody


@pytest.mark.parametrize(
    ("url", "exists"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions", True),
        ("/v1/responses", True),
        ("/v3/completions", True),
        ("/v2/rerank", True),
        ("/v2/completions", False),
        ("/v1/batches", False),
        ("/v1/models", False),
        ("/v1/responses/x", False),
        ("completions", False),
        ("http://other/v1/completions", False),
    ],
)
def test_endpoints(make_api, url: str, exists: bool) -> None:
    from fastovms.api.batches.endpoints import BatchEndpoints

    api = make_api()
    endpoints = BatchEndpoints(api.router, api.context.models, 10)
    assert endpoints.exists(url) is exists
    rules = endpoints.rules(None)
    assert rules.find_model("fake", "/v1/completions") == "fake"
    assert rules.find_model("other", "/v1/completions") is None
    assert rules.find_model(None, "/v3/completions") is None
    assert "/v1/completions" in endpoints.all()
    with pytest.raises(MalformedBody, match="nested more than 100 levels"):
        rules.weigh(b"[" * 101 + b"]" * 101)
