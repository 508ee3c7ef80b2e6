"""What a chat's body asks for."""

from __future__ import annotations

import pytest

from fastovms.params import SamplingDefaults
from tests.api.chat_models import MESSAGES, chat_model
from tests.api.chats import BODY, V1, V3, join, make

__all__ = ["make"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_echo(make, streamed):
    cases = (
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Well, "}],
          "continue_final_message": True, "add_generation_prompt": False}, "Well, Hello!"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Well, "}]}, "Well, Hello!"),
        ({}, "Hello!"),
    )  # fmt: skip
    for fields, content in cases:
        body = {**BODY, **fields, "echo": True, "n": 2}
        if streamed:
            found = [choice["content"] for choice in join(await make().stream(V1, body)).values()]
        else:
            _, answer = await make().post(V1, body)
            found = [choice["message"]["content"] for choice in answer["choices"]]
        assert found == [content, content]


async def test_role_of_the_answer(make):
    _, body = await make(chat=chat_model(response_role="critic")).post(V1, BODY)
    assert body["choices"][0]["message"]["role"] == "critic"
    messages = [{"role": "user", "content": "Once upon"}]
    fields = {"messages": messages, "continue_final_message": True}
    events = await make().stream(V1, {**BODY, **fields})
    assert join(events)[0]["role"] == "user"


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        {"messages": [{"role": "system", "content": "S"}], "add_generation_prompt": False},
        {"continue_final_message": True},
    ],
)
async def test_role_of_an_answer_without_a_generation_prompt(make, fields):
    """vLLM's is the last message's, OVMS knows none but the assistant's."""
    body = {**BODY, **fields}
    for path, role in ((V1, body["messages"][-1]["role"]), (V3, "assistant")):
        _, answer = await make().post(path, body)
        assert answer["choices"][0]["message"]["role"] == role
        assert join(await make().stream(path, body))[0]["role"] == role


async def test_best_of(make):
    api = make(lambda request, index: b"acbd"[index : index + 1] * 2)
    _, answer = await api.post(V1, {**BODY, "n": 2, "best_of": 4})
    assert len(answer["choices"]) == 2
    assert answer["choices"][0]["logprobs"] is None
    assert api.backend.submitted[0].params.n == 4


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (V1, {}, None),
        (V3, {}, None),
        (V1, {"max_tokens": 7}, 7),
        (V1, {"max_tokens": 7, "max_completion_tokens": 5}, 5),
        (V1, {"max_completion_tokens": 5}, 5),
        (V1, {"max_tokens": 10_000}, 1994),
        (V3, {"max_completion_tokens": 5, "max_tokens": 7}, 5),
    ],
)
async def test_max_tokens(make, path, fields, expected):
    api = make()
    assert (await api.post(path, {**BODY, **fields}))[0] == 200
    assert api.backend.submitted[0].params.max_tokens == expected
    api = make(defaults=SamplingDefaults(max_new_tokens=3))
    await api.post(path, {**BODY, **fields})
    assert api.backend.submitted[0].params.max_tokens == (expected or 3)
