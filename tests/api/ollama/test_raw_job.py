"""Prompts that no template is put around."""

from __future__ import annotations

import pytest

from fastovms.api.serving.chat_model import ChatModel
from tests.api.chat_models import prompt_of
from tests.api.ollama.ollama_requests import GENERATE, PROMPTED, ask, lines, make, refused
from tests.fakes import ByteTokenizer

__all__ = ["make"]
FIM = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}


@pytest.mark.parametrize("chat", [None, ChatModel()])
async def test_a_raw_prompt_goes_as_it_is(make, chat):
    api = make("<think>a</think>", chat=chat)
    answer = await ask(api, GENERATE, {**PROMPTED, "raw": True})
    assert prompt_of(api) == "Hi"
    assert answer["response"] == "<think>a</think>"
    assert "context" not in answer
    *parts, last = await lines(make("abc", chat=chat), GENERATE, {**PROMPTED, "raw": True})
    assert "".join(part["response"] for part in parts) == "abc"
    assert last["done_reason"] == "stop"


async def test_a_model_without_a_template_goes_on_with_prompts(make):
    api = make("yes", chat=ChatModel())
    answer = await ask(api, GENERATE, {**PROMPTED, "context": [*b"So "]})
    assert prompt_of(api) == "So Hi"
    assert answer["context"] == [*b"So Hiyes"]
    error = await refused(make(chat=ChatModel()), GENERATE, {**PROMPTED, "system": "Be brief."})
    assert "has no chat template" in error


async def test_what_is_missing_is_filled_in(make):
    api = make("z", tokenizer=ByteTokenizer(**FIM))
    assert (await ask(api, GENERATE, {**PROMPTED, "suffix": "xy"}))["response"] == "z"
    assert list(api.backend.submitted[0].prompt_token_ids) == [1, *b"Hi", 2, *b"xy", 3]
    error = await refused(make(), GENERATE, {**PROMPTED, "suffix": "xy"})
    assert error == 'suffix: "fake" does not support insert'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"raw": True, "system": "a"}, "system cannot be used when raw is true"),
        ({"raw": True, "context": [1]}, "context cannot be used when raw is true"),
        ({"suffix": "a", "images": ["aGk="]}, "images cannot be used when suffix is given"),
        ({"raw": True, "think": True}, "think needs the model's template"),
        ({"template": "{{ .Prompt }}"}, "template is not supported"),
        ({"raw": True, "prompt": "a" * 10**6}, "maximum context length"),
    ],
)
async def test_refusals(make, fields, message):
    assert message in await refused(make(), GENERATE, {**PROMPTED, **fields})
