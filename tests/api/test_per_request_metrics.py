"""Tests of the timing fields in answers with `--enable-per-request-metrics`."""

from __future__ import annotations

import pytest

from fastovms.config import ApiConfig
from tests.api.chat_models import chat_model

NAMES = {
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
    "accepted_draft_tokens",
}
CHAT = {"messages": [{"role": "user", "content": "a"}]}
BODIES = {"completions": {"prompt": "a"}, "chat/completions": CHAT, "responses": {"input": "a"}}
ENDPOINTS = [(prefix, name) for prefix in ("/v1", "/v3") for name in BODIES]


def asked(make_api, name: str, *, told: bool = True, **fields: object):
    api = make_api("hello", chat=chat_model(), config=ApiConfig(per_request_metrics=told))
    api.backend.queue_time = 0.0
    return api, {"model": api.backend.model.name, **BODIES[name], **fields}


@pytest.mark.parametrize(("prefix", "name"), ENDPOINTS)
async def test_whole_answer_has_metrics(make_api, prefix, name):
    api, body = asked(make_api, name)
    answer = await api.answer(f"{prefix}/{name}", body)
    assert set(answer["metrics"]) == NAMES
    assert all(value >= 0 for value in answer["metrics"].values())


@pytest.mark.parametrize(("prefix", "name"), ENDPOINTS)
async def test_stream_event_with_usage_has_metrics(make_api, prefix, name):
    options = {} if name == "responses" else {"stream_options": {"include_usage": True}}
    api, body = asked(make_api, name, **options)
    *events, done = await api.stream(f"{prefix}/{name}", body)
    assert done == "[DONE]"
    *earlier, last = [event.get("response", event) for event in events]
    assert set(last["metrics"]) == NAMES
    assert last["usage"]
    assert not any("metrics" in event for event in earlier)


@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        *((name, {}, False) for name in BODIES),
        ("completions", {"n": 2}, True),
        ("completions", {"prompt": ["a", "b"]}, True),
        ("chat/completions", {"n": 2}, True),
    ],
)
async def test_metrics_are_absent_by_default_or_with_several_samples(make_api, name, fields, told):
    api, body = asked(make_api, name, told=told, **fields)
    _, answer = await api.post(f"/v1/{name}", body)
    assert "metrics" not in answer


async def test_included_metrics_are_reported_whatever_the_setting(make_api):
    api, body = asked(make_api, "responses", told=False, include=["metrics"])
    assert set((await api.post("/v1/responses", body))[1]["metrics"]) == NAMES
    assert set((await api.stream("/v1/responses", body))[-2]["response"]["metrics"]) == NAMES
