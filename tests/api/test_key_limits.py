"""Tests of the limits of API keys: counting, refusals, and the answers to clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from fastovms.http.gates import KeyLimits
from fastovms.http.messages import Response
from fastovms.parts.limits import KeyBudget, KeyBudgets
from tests.api.chat_models import chat_model
from tests.api.encoder_api import served_encoder
from tests.fakes import FakeStream

NOON = 1_750_075_200.0
"""12:00 UTC."""


class Site:
    """An API whose key has limits. `now` is the Unix time."""

    def __init__(self, api: Any, *limits: int) -> None:
        self.api = api
        self.now = NOON + 15
        self.budgets = KeyBudgets(lambda: self.now)
        self.budgets.set_limits({"key": KeyLimits(*limits)})

    @property
    def budget(self) -> KeyBudget:
        budget = self.budgets.find("key")
        assert budget is not None
        return budget

    def used(self) -> list[int]:
        return [window.used(self.now) for window in self.budget.windows]

    async def post(
        self, path: str = "/v1/completions", body: Any = None, **options: Any
    ) -> Response | None:
        body = {"prompt": "hi", "max_tokens": 3} if body is None else body
        options = {"budget": self.budget, "tenant": "key", **options}
        return await self.api.call("POST", path, body, FakeStream(), **options)

    async def status(self, **options: Any) -> int:
        response = await self.post(**options)
        assert response is not None
        return response.status

    def fields(self) -> dict[str, str]:
        return dict(self.api.last_request.answer_fields)


@pytest.fixture
def make(make_api: Callable[..., Any]) -> Callable[..., Site]:
    return lambda *limits: Site(make_api(), *limits)


async def test_requests_beyond_the_limit_are_refused_until_the_next_minute(make) -> None:
    site = make(2)
    assert [await site.status() for _ in range(4)] == [200, 200, 429, 429]
    site.now = NOON + 59.9
    assert await site.status() == 429
    site.now = NOON + 60
    assert await site.status() == 200


async def test_request_is_admitted_while_a_token_is_left(make) -> None:
    site = make(0, 6, 0)
    assert await site.status() == 200  # a prompt of 2 tokens, and 3 more
    assert site.used() == [1, 5, 5]
    assert [await site.status() for _ in range(2)] == [200, 429]
    assert site.used() == [2, 10, 10]
    site.now = NOON + 60
    assert await site.status() == 200
    assert site.used() == [1, 5, 15]


async def test_tokens_of_a_day_are_counted_until_midnight(make) -> None:
    site = make(0, 0, 5)
    assert [await site.status() for _ in range(2)] == [200, 429]
    assert site.fields()["x-ratelimit-reset-tokens"] == "11h59m45s"
    assert site.fields()["x-should-retry"] == "false"
    site.now = NOON + 12 * 3600
    assert await site.status() == 200


OPENAI = {
    "message": "this API key has used its 3 requests a minute; retry in 45s",
    "type": "rate_limit_error",
    "param": None,
    "code": "rate_limit_exceeded",
}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/chat/completions", {"error": OPENAI}),
        ("/v1/responses", {"error": OPENAI}),
        ("/v1/embeddings", {"error": OPENAI}),
        ("/v3/chat/completions", {"error": OPENAI["message"]}),
        ("/api/chat", {"error": OPENAI["message"]}),
        ("/v2/rerank", {"id": "req-1", "message": OPENAI["message"]}),
    ],
)
async def test_refusal_has_the_form_of_its_dialect_and_openais_fields(make, path, error) -> None:
    site = make(3, 100, 40)
    for _ in range(3):
        assert await site.status() == 200
    response = await site.post(path, {})
    assert (response.status, orjson.loads(response.body)) == (429, error)
    assert dict(response.headers)["Retry-After"] == "45"
    assert site.fields() == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "45s",
        "x-ratelimit-limit-tokens": "40",
        "x-ratelimit-remaining-tokens": "25",
        "x-ratelimit-reset-tokens": "11h59m45s",
    }


async def test_anthropics_clients_get_their_fields(make) -> None:
    site = make(1, 9)
    assert await site.status() == 200
    response = await site.post("/v1/messages", {})
    error = orjson.loads(response.body)["error"]
    assert (response.status, error["type"]) == (429, "rate_limit_error")
    assert dict(response.headers)["Retry-After"] == "45"
    assert site.fields() == {
        "anthropic-ratelimit-requests-limit": "1",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2025-06-16T12:01:00Z",
        "anthropic-ratelimit-tokens-limit": "9",
        "anthropic-ratelimit-tokens-remaining": "4",
        "anthropic-ratelimit-tokens-reset": "2025-06-16T12:01:00Z",
    }


async def test_answer_shows_what_is_left_also_to_pages_of_other_origins(make) -> None:
    site = make(5)
    assert await site.status(headers={"origin": "http://a"}) == 200
    fields = site.fields()
    assert fields["x-ratelimit-remaining-requests"] == "4"
    assert "x-ratelimit-remaining-requests" in fields["Access-Control-Expose-Headers"]


async def test_stream_is_counted_and_shows_what_is_left(make) -> None:
    site = make(5, 100)
    body = {"prompt": "hi", "max_tokens": 3, "stream": True}
    assert await site.post(body=body) is None
    assert site.used() == [1, 5, 5]
    assert site.fields()["x-ratelimit-remaining-tokens"] == "100"  # at the start of the period


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", None),
        ("POST", "/v1/tokenize", {"prompt": "hi"}),
        ("GET", "/v1/responses/resp_1", None),
    ],
)
async def test_requests_that_run_no_model_are_not_counted(make, method, path, body) -> None:
    site = make(1)
    assert await site.status() == 200
    response = await site.api.call(method, path, body, budget=site.budget, tenant="key")
    assert response.status != 429
    assert site.fields() == {}
    assert site.used()[0] == 1


async def test_line_of_a_batch_takes_tokens_but_no_requests(make) -> None:
    site = make(1, 10)
    assert [await site.status(priority=100) for _ in range(3)] == [200, 200, 429]
    assert site.used()[:2] == [0, 10]


async def test_embeddings_count_the_tokens_of_their_texts(make_encoder_api) -> None:
    site = Site(make_encoder_api(served_encoder()), 0, 100)
    assert await site.status(path="/v1/embeddings", body={"input": ["ab", "c"]}) == 200
    usage = orjson.loads((await site.post("/v1/embeddings", {"input": "ab"})).body)["usage"]
    assert usage["prompt_tokens"] > 0
    assert site.used()[1] > usage["prompt_tokens"]


async def test_response_in_the_background_is_counted(make_api, make_state) -> None:
    state = make_state()
    site = Site(make_api(state=state, chat=chat_model()), 0, 100)
    body = {"input": "hi", "background": True, "max_output_tokens": 3}
    assert await site.status(path="/v1/responses", body=body) == 200
    await state.runs.drain(60)
    assert site.used()[1] >= 3


def test_changed_limits_keep_the_counts_of_a_key() -> None:
    budgets = KeyBudgets(lambda: NOON)
    budgets.set_limits({"a": KeyLimits(tokens_per_minute=5), "b": KeyLimits(1)})
    budget = budgets.find("a")
    assert budget is not None
    budget.charge(5)
    budgets.set_limits({"a": KeyLimits(tokens_per_day=9)})
    assert budgets.find("a") is budget
    assert budgets.find("b") is None
    assert [window.left(NOON) for window in budget.windows] == [0, 0, 4]


def test_tokens_taken_back_in_the_next_minute_do_not_add_to_it() -> None:
    budget = KeyBudgets(lambda: NOON)
    budget.set_limits({"a": KeyLimits(tokens_per_minute=5)})
    found = budget.find("a")
    assert found is not None
    found.charge(-3)
    assert found.windows[1].left(NOON) == 5


async def test_metrics_show_use_limits_and_refusals(make) -> None:
    site = make(1, 0, 50)
    assert [await site.status() for _ in range(2)] == [200, 429]
    registry = CollectorRegistry()
    registry.register(site.budgets)
    value = registry.get_sample_value
    refused = "fastovms_rate_limited_requests_total"
    assert value(refused, {"limit": "requests_per_minute"}) == 1
    assert value("fastovms_key_used", {"key": "key", "limit": "tokens_per_day"}) == 5
    assert value("fastovms_key_limit", {"key": "key", "limit": "tokens_per_day"}) == 50
    assert value("fastovms_key_used", {"key": "key", "limit": "tokens_per_minute"}) is None
