from __future__ import annotations

import asyncio

import pytest

V1 = "/v1/completions"
BODY = {"model": "fake", "prompt": "ab"}


@pytest.mark.parametrize("others_wait", [False, True])
@pytest.mark.parametrize("fields", [{}, {"echo": True, "logprobs": 1, "max_tokens": 0}])
@pytest.mark.parametrize(
    ("prompts", "n", "param"),
    [
        (1, 1, None),
        (1, 9, None),
        (4, 1, None),
        (5, 1, "prompt"),
        (3, 2, "n"),
        (2, 4, "n"),
        (2, 3, None),
    ],
)
async def test_prompts_are_queued_together_or_not_at_all(
    make_api, prompts, n, param, fields, others_wait
):
    """No request waits for ever for a place in a queue that is too short for it."""
    api = make_api("z")
    backend = api.backend
    backend.max_num_waiting = 4
    other = None
    if others_wait:
        backend.paused = True
        other = asyncio.create_task(api.post(V1, {**BODY, "n": 4}))
        await backend.received.wait()
    num_others = len(backend.submitted)
    status, answer = await api.post(V1, {**BODY, **fields, "prompt": ["a"] * prompts, "n": n})
    if other is not None:
        assert status == 429
        assert len(backend.submitted) == num_others
        backend.paused = False
        backend.step()
        assert (await other)[0] == 200
    elif param is not None and not (fields and n > 1):
        assert (status, answer["error"]["param"]) == (400, param)
        assert param in answer["error"]["message"]
    else:
        assert (status, len(answer["choices"])) == (200, prompts * n)
    assert backend.stats().num_running == 0
