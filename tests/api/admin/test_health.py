"""What probes and monitoring are told."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.admin.test_models import api, get

__all__ = ["api"]


@pytest.mark.parametrize("path", ["/health", "/ping", "/ready", "/v2/health/ready"])
async def test_health(api, path):
    assert await get(api, path) == (200, None)
    api.backend.failure = "inference hung"
    status, body = await get(api, path)
    assert status == 503
    assert "inference hung" in (body["error"] if path[:3] == "/v2" else body["error"]["message"])
    assert await get(api, "/v2/health/live") == (200, None)
    assert await get(api, "/health/") == await get(api, "/health")


async def test_version_and_metadata(api):
    assert await get(api, "/version") == (200, {"version": "1.2.3"})
    status, body = await get(api, "/v2")
    assert (status, body["name"], body["version"]) == (200, "fastovms", "1.2.3")


async def test_metrics(api):
    await api.post("/v1/completions", {"prompt": ["ab", "c"], "n": 2, "max_tokens": 3})
    await api.post("/v1/completions", {"prompt": "ab"})
    response = await api.call("GET", "/metrics")
    assert response.content_type.startswith("text/plain")
    samples = {
        (sample.name, *(value for key, value in sample.labels.items() if key != "model_name")):
        sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }  # fmt: skip
    assert samples["fastovms_request_success_total", "length"] == 4
    assert samples["fastovms_request_success_total", "stop"] == 1
    assert samples["fastovms_time_to_first_token_seconds_count",] == 5
    assert samples["fastovms_inter_token_latency_seconds_count",] == 4 * 2 + 5
    assert samples["fastovms_e2e_request_latency_seconds_count",] == 2
    for name, count, total in (
        ("request_prompt_tokens", 2, 3 + 2),
        ("request_generation_tokens", 2, 4 * 3 + 6),
        ("request_params_n", 2, 2 + 1),
        ("request_params_max_tokens", 2, 3 + 16),
    ):
        assert samples[f"fastovms_{name}_count",] == count
        assert samples[f"fastovms_{name}_sum",] == total
    assert samples["fastovms_spec_decode_num_drafts_total",] == 0
    assert samples["fastovms_spec_decode_num_draft_tokens_total",] == 0
    assert samples["fastovms_kv_cache_usage_perc",] == 0.6
    assert samples["fastovms_step_seconds_bucket", "+Inf"] == 0
    assert samples["fastovms_longest_step_seconds",] == 0
    assert samples["fastovms_num_requests_running",] == 0
    assert "fastovms_generation_tokens_total" in {name for name, *_ in samples}


async def test_metrics_of_some_names(api):
    names = ("fastovms_generation_tokens_total", "fastovms_step_seconds")
    query = "&".join(f"name[]={name}" for name in (*names, "fastovms_no_such_series"))
    response = await api.call("GET", f"/metrics?{query}")
    families = list(text_string_to_metric_families(response.body.decode()))
    assert {family.name for family in families} == {
        "fastovms_generation_tokens",
        "fastovms_step_seconds",
    }
    bucket = "fastovms_step_seconds_bucket"
    response = await api.call("GET", f"/metrics?name%5B%5D={bucket}")
    [family] = text_string_to_metric_families(response.body.decode())
    assert {sample.name for sample in family.samples} == {bucket}
    response = await api.call("GET", "/metrics?" + "name[]=x&" * 300)
    assert response.status == 400
