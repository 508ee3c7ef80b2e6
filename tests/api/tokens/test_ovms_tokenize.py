from __future__ import annotations

import pytest

from fastovms.api.request.prompting import offload
from fastovms.api.tokens.ovms_tokenize import MAX_PADDED
from tests.api.tokens.test_tokenize import OVMS


@pytest.mark.parametrize("path", OVMS)
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"text": "abc"}, [97, 98, 99]),
        ({"text": ["abc"]}, [97, 98, 99]),
        ({"text": ""}, []),
        ({"text": ["abc", "d"]}, [[97, 98, 99], [100]]),
        ({"text": "abc", "max_length": 2}, [97, 98]),
        ({"text": "abc", "max_length": 4}, [97, 98, 99]),
        ({"text": "abc", "max_length": 5, "pad_to_max_length": True}, [0, 0, 97, 98, 99]),
        ({"text": "abc", "max_length": 2, "pad_to_max_length": True}, [97, 98]),
        (
            {"text": "abc", "max_length": 4, "pad_to_max_length": True, "padding_side": "right"},
            [97, 98, 99, 0],
        ),
        ({"text": ["ab", "c"], "pad_to_max_length": True}, [[97, 98], [0, 99]]),
        ({"text": ["ab", "c"], "padding_side": "right"}, [[97, 98], [99]]),
        ({"text": "a", "add_special_tokens": False}, [97]),
        ({"text": "abc", "max_length": None}, [97, 98, 99]),
        ({"text": ["ab", "c"], "pad_to_max_length": None}, [[97, 98], [99]]),
        (
            {"text": ["ab", "c"], "pad_to_max_length": True, "padding_side": None},
            [[97, 98], [0, 99]],
        ),
        ({"text": ["ab", "c"], "pad_to_max_length": True, "max_length": None}, [[97, 98], [0, 99]]),
        ({"text": "a", "add_special_tokens": None}, [97]),
    ],
)
async def test_tokenize_of_ovms(make_api, path, fields, tokens):
    assert await make_api().post(path, {"model": "fake", **fields}) == (200, {"tokens": tokens})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "text"),
        ({"text": None}, "text"),
        ({"text": 5}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", 1]}, "text"),
        ({"text": [[]]}, "text"),
        ({"text": [[], ["a"]]}, "text"),
        ({"text": [1, 2]}, "text"),
        ({"text": ["a"] * 1025}, "text"),
        ({"text": ["a" * 2**20, "b"]}, "text"),
        ({"text": "a", "max_length": 0}, "max_length"),
        ({"text": "a", "max_length": -1}, "max_length"),
        ({"text": "a", "max_length": 1.5}, "max_length"),
        ({"text": "a", "pad_to_max_length": "yes"}, "pad_to_max_length"),
        ({"text": "a", "pad_to_max_length": True, "max_length": MAX_PADDED + 1}, "max_length"),
        ({"text": "a", "padding_side": "top"}, "padding_side"),
        ({"text": "a", "padding_side": 5}, "padding_side"),
        ({"text": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ],
)
async def test_bad_requests_of_ovms(make_api, fields, field):
    status, answer = await make_api().post("/v3/tokenize", {"model": "fake", **fields})
    assert (status, field in answer["error"]) == (400, True), answer


async def test_ovms_wants_a_model(make_api):
    status, answer = await make_api().post("/v3/tokenize", {"text": "a"})
    assert (status, "model" in answer["error"]) == (412, True)


async def test_texts_are_not_padded_to_what_would_fill_the_memory(make_api):
    longest = MAX_PADDED // 1024
    body = {"model": "fake", "text": ["a" * longest] + [""] * 1023, "pad_to_max_length": True}
    status, answer = await make_api().post("/v3/tokenize", body)
    assert (status, {len(tokens) for tokens in answer["tokens"]}) == (200, {longest})
    body["text"] = ["a" * (longest + 1)] + [""] * 1023
    status, answer = await make_api().post("/v3/tokenize", body)
    assert status == 400
    for name in ("text", "max_length", "pad_to_max_length", str(MAX_PADDED + 1024)):
        assert name in answer["error"]


async def test_padding_counts_as_work_that_is_done_in_a_thread(make_api, monkeypatch):
    costs = []
    run = offload.run

    async def spied(work, cost):
        costs.append(cost)
        return await run(work, cost)

    monkeypatch.setattr(offload, "run", spied)
    body = {"model": "fake", "text": ["a", "b"], "max_length": 5000}
    for pads in (False, True):
        status, _ = await make_api().post("/v3/tokenize", {**body, "pad_to_max_length": pads})
        assert status == 200
    assert costs[0] < offload.MUCH < 10_000 <= costs[1]
