"""What is told of tokens, and what not."""

from __future__ import annotations

from fastovms.config.api_config import ApiConfig
from tests.api.completions.completion_requests import BODY, V1


async def test_more_log_probabilities_where_the_operator_allows_them(make_api):
    for max_logprobs, allowed, refused in ((3, 3, 4), (-1, -1, -2), (0, 0, 1)):
        api = make_api(config=ApiConfig(max_logprobs=max_logprobs))
        for field in ("logprobs", "prompt_logprobs"):
            assert (await api.post(V1, {**BODY, field: allowed}))[0] == 200
            status, answer = await api.post(V1, {**BODY, field: refused})
            assert (status, answer["error"]["param"]) == (400, field)
    api = make_api(config=ApiConfig(max_logprobs=-1))
    status, answer = await api.post(V1, {**BODY, "logprobs": -1, "stream": True})
    assert (status, answer["error"]["param"]) == (400, "logprobs")


async def test_nothing_is_reported_that_was_not_asked_for(make_api):
    _, answer = await make_api("z").post(V1, BODY)
    told = {name for name, value in answer["choices"][0].items() if value is not None}
    assert told == {"index", "text", "finish_reason"}
