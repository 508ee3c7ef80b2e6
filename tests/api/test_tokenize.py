"""Tests of `fastovms/api/tokenize.py`."""

from __future__ import annotations

import pytest

from fastovms.api import offload
from fastovms.api.tokenize import MAX_PADDED
from fastovms.params import Task
from tests.api.chat_models import MESSAGES, chat_model, tool
from tests.api.encoder_api import CLS, SEP, served_encoder
from tests.fakes import EOS, model_info

# `/tokenize` and `/detokenize` with models of embeddings and rerankers.


HI = [104, 105]


def counted(tokens: list[int], strings: list[str] | None = None) -> dict[str, object]:
    return {"count": len(tokens), "max_model_len": 64, "tokens": tokens, "token_strs": strings}


@pytest.mark.parametrize("task", [Task.EMBEDDINGS, Task.RERANK])
@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/tokenize", {"prompt": "hi"}, counted([CLS, *HI, SEP])),
        (
            "/v1/tokenize",
            {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True},
            counted(HI, ["h", "i"]),
        ),
        ("/v1/detokenize", {"tokens": [CLS, *HI]}, {"prompt": "[CLS]hi"}),
        ("/v3/tokenize", {"text": "hi"}, {"tokens": [CLS, *HI, SEP]}),
        ("/v3/tokenize", {"text": ["hi"], "add_special_tokens": False}, {"tokens": HI}),
        (
            "/v3/tokenize",
            {"text": ["", "hi"], "pad_to_max_length": True, "padding_side": "right"},
            {"tokens": [[CLS, SEP, 0, 0], [CLS, *HI, SEP]]},
        ),
        ("/v3/tokenize", {"text": ["hi", "h"], "max_length": 2}, {"tokens": [[CLS, 104]] * 2}),
    ],
)
async def test_encoder_tokenizes_and_detokenizes_in_each_dialect(
    make_encoder_api, task, path, body, answer
) -> None:
    assert await make_encoder_api(served_encoder(task)).post(path, {"model": "fake", **body}) == (
        200,
        answer,
    )


@pytest.mark.parametrize(
    ("path", "body", "field", "reason"),
    [
        ("/tokenize", {"messages": MESSAGES}, "messages", "not a chat model"),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, "return_token_strs", "exported"),
        ("/detokenize", {"tokens": HI}, "tokens", "exported without a detokenizer"),
        ("/detokenize", {"tokens": [SEP + 1]}, "tokens", "exported without a detokenizer"),
    ],
)
async def test_unsupported_tokenization_of_an_encoder_is_refused(
    make_encoder_api, path, body, field, reason
) -> None:
    api = make_encoder_api(served_encoder(has_detokenizer=False))
    status, answer = await api.post(path, {"model": "fake", **body})
    assert (status, answer["error"]["param"]) == (400, field)
    assert field in answer["error"]["message"]
    assert reason in answer["error"]["message"]


VLLM = ["/tokenize", "/v1/tokenize"]
DETOKENIZE = ["/detokenize", "/v1/detokenize"]
OVMS = ["/v3/tokenize", "/v3/v1/tokenize"]
OPTIONS = ("max_length", "pad_to_max_length", "padding_side", "add_special_tokens")


@pytest.mark.parametrize("path", VLLM)
async def test_tokenize_returns_ids_and_requested_strings(make_api, path):
    body = {"prompt": "hé"}
    tokens = list("hé".encode())
    assert await make_api().post(path, body) == (200, counted(tokens))
    _, answer = await make_api().post(path, {**body, "return_token_strs": True})
    assert answer["token_strs"] == ["h", "bytes:\\xc3", "bytes:\\xa9"]


@pytest.mark.parametrize("path", DETOKENIZE)
async def test_detokenize_returns_the_text_of_the_tokens(make_api, path):
    for text in ("", "hé" * 3000):
        body = {"tokens": list(text.encode())}
        assert await make_api().post(path, body) == (200, {"prompt": text})


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": "a"}, "messages"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"prompt": "a" * (2**20 + 1)}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, EOS + 1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
    ],
)
async def test_invalid_tokenize_field_is_refused_by_name(make_api, path, body, field):
    for prefix in ("", "/v1"):
        status, answer = await make_api().post(prefix + path, body)
        assert (status, answer["error"]["param"]) == (400, field)
        assert field in answer["error"]["message"]


async def test_unknown_model_is_a_404_and_a_missing_one_a_412_for_ovms(make_api):
    for path in (*VLLM, *DETOKENIZE, *OVMS):
        status, _ = await make_api().post(path, {"model": "other"})
        assert status == 404
    status, answer = await make_api().post("/v3/tokenize", {"text": "a"})
    assert (status, "model" in answer["error"]) == (412, True)


async def test_counts_agree_with_usage(make_api):
    api = make_api()
    text = "Grüße, 世界"
    _, completion = await api.post("/v1/completions", {"prompt": text})
    _, tokens = await api.post("/tokenize", {"prompt": text})
    _, of_ovms = await api.post("/v3/tokenize", {"model": "fake", "text": text})
    assert tokens["count"] == len(of_ovms["tokens"]) == completion["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"tools": [tool()]},
        {"add_generation_prompt": False},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"chat_template_kwargs": {"style": "terse"}},
        {"messages": [{"role": "user", "content": "long " * 2000}]},
    ],
)
async def test_counts_of_messages_agree_with_usage(make_api, fields):
    api = make_api(model=model_info(max_model_len=20_000), chat=chat_model())
    body = {"messages": MESSAGES, **fields}
    _, used = await api.post("/v1/chat/completions", {**body, "return_token_ids": True})
    for path in VLLM:
        answer = await api.answer(path, body)
        assert answer["count"] == used["usage"]["prompt_tokens"] == len(answer["tokens"])
        assert answer["tokens"] == used["prompt_token_ids"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"continue_final_message": True, "add_generation_prompt": True},
         "continue_final_message"),
        ({"prompt": "a"}, "prompt"),
    ],
)  # fmt: skip
async def test_invalid_message_fields_are_refused_by_name(make_api, fields, field):
    api = make_api(chat=chat_model())
    status, answer = await api.post("/tokenize", {"messages": MESSAGES, **fields})
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert field in answer["error"]["message"]


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
        ({"text": "a", **dict.fromkeys(OPTIONS)}, [97]),
    ],
)
async def test_ovms_tokenize_truncates_and_pads(make_api, path, fields, tokens):
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
async def test_invalid_ovms_tokenize_field_is_refused_by_name(make_api, fields, field):
    status, answer = await make_api().post("/v3/tokenize", {"model": "fake", **fields})
    assert (status, field in answer["error"]) == (400, True), answer


async def test_padded_tokens_have_a_limit(make_api):
    longest = MAX_PADDED // 1024
    body = {"model": "fake", "text": ["a" * longest] + [""] * 1023, "pad_to_max_length": True}
    status, answer = await make_api().post("/v3/tokenize", body)
    assert (status, {len(tokens) for tokens in answer["tokens"]}) == (200, {longest})
    body["text"] = ["a" * (longest + 1)] + [""] * 1023
    status, answer = await make_api().post("/v3/tokenize", body)
    assert status == 400
    for name in ("text", "max_length", "pad_to_max_length", str(MAX_PADDED + 1024)):
        assert name in answer["error"]


async def test_padding_is_done_in_a_thread(make_api, monkeypatch):
    costs = []
    run = offload.run

    async def spied(work, cost):
        costs.append(cost)
        return await run(work, cost)

    monkeypatch.setattr(offload, "run", spied)
    body = {"model": "fake", "text": ["a", "b"], "max_length": 5000}
    for pads in (False, True):
        await make_api().answer("/v3/tokenize", {**body, "pad_to_max_length": pads})
    assert costs[0] < offload.MUCH < 10_000 <= costs[1]
