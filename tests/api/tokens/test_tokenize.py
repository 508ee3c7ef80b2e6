from __future__ import annotations

import pytest

from tests.api.chat_models import MESSAGES, chat_model, tool
from tests.fakes import EOS, model_info

VLLM = ["/tokenize", "/v1/tokenize"]
DETOKENIZE = ["/detokenize", "/v1/detokenize"]
OVMS = ["/v3/tokenize", "/v3/v1/tokenize"]


@pytest.mark.parametrize("path", VLLM)
async def test_tokenize(make_api, path):
    body = {"prompt": "hé"}
    tokens = list("hé".encode())
    assert await make_api().post(path, body) == (
        200,
        {"count": 3, "max_model_len": 64, "tokens": tokens, "token_strs": None},
    )
    _, answer = await make_api().post(path, {**body, "return_token_strs": True})
    assert answer["token_strs"] == ["h", "bytes:\\xc3", "bytes:\\xa9"]


@pytest.mark.parametrize("path", DETOKENIZE)
async def test_detokenize(make_api, path):
    for tokens, text in (([104, 105], "hi"), ([], "")):
        assert await make_api().post(path, {"tokens": tokens}) == (200, {"prompt": text})


async def test_text_is_given_back(make_api):
    api = make_api(model=model_info(max_model_len=10_000))
    for text in ("", "a", "hé" * 3000):
        _, answer = await api.post("/tokenize", {"prompt": text})
        _, answer = await api.post("/detokenize", {"tokens": answer["tokens"]})
        assert answer["prompt"] == text


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
async def test_bad_requests_of_vllm(make_api, path, body, field):
    for prefix in ("", "/v1"):
        status, answer = await make_api().post(prefix + path, body)
        assert (status, answer["error"]["param"]) == (400, field)
        assert field in answer["error"]["message"]


async def test_unknown_model(make_api):
    for path in (*VLLM, *DETOKENIZE, *OVMS):
        status, _ = await make_api().post(path, {"model": "other"})
        assert status == 404


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
        status, answer = await api.post(path, body)
        assert status == 200, answer
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
async def test_bad_messages(make_api, fields, field):
    api = make_api(chat=chat_model())
    status, answer = await api.post("/tokenize", {"messages": MESSAGES, **fields})
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert field in answer["error"]["message"]
