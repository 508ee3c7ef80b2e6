"""Tests of `fastovms/api/prepare.py`."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.config import ApiConfig
from tests.api.chat_models import MESSAGES, chat_model
from tests.api.test_served import TAG, V1, V3, chat, error, given, image, make, text, user
from tests.fakes import model_info
from tests.media.pictures import BLUE, RED

# The checks of every endpoint first, and the token data that an answer needs.


COMPLETIONS = ("/v1/completions", {"prompt": "ab"})


# Prompts with images, for the backend.


__all__ = ["make"]


async def test_images_are_numbered_through_all_messages(make):
    api = make()
    messages = [
        user(image(), text("one")),
        {"role": "assistant", "content": "I see"},
        {"role": "tool", "content": [text("look"), image(BLUE)], "tool_call_id": "x"},
        user(image()),
    ]
    await api.answer(V1, {"model": "fake", "messages": messages})
    found, colors = given(api)
    assert found == f"u:{TAG(0)}one;a:I see;t:look{TAG(1)};u:{TAG(2)};>"
    assert colors == [list(RED), list(BLUE), list(RED)]


async def test_stop_strings_go_to_the_backend_where_there_are_images(make):
    api = make()
    await api.post(V1, chat(image(), stop=["x", "yz"]))
    assert api.backend.submitted[-1].params.stop_strings == ("x", "yz")
    for body in (chat(text("hi"), stop=["x"]), chat(image(), stop=["x"], min_tokens=2)):
        await api.post(V1, body)
        assert api.backend.submitted[-1].params.stop_strings == ()


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([user(image(), text(f"see {TAG(0)}"))], "messages[0].content[1].text"),
        ([user(image(), text(TAG(7)))], "messages[0].content[1].text"),
        ([user(text(TAG(0)))], "messages[0].content[0].text"),
        ([user(text("<ov_genai_video_0>"))], "messages[0].content[0].text"),
        ([user(text("<|image_pad|>"), image())], "messages[0].content[0].text"),
        ([user(text("<ov_genai"), text("a")), user(text(TAG(0)))], "messages[1].content[0].text"),
        ([{"role": "user", "content": f"Hi {TAG(0)}"}], "messages[0].content"),
        ([{"role": "system", "content": TAG(0)}, user(image())], "messages[0].content"),
        (
            [
                user(image()),
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"function": {"name": "f", "arguments": f'{{"a": "{TAG(0)}"}}'}}
                    ],
                },
            ],
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
async def test_image_tags_in_texts_are_refused(make, path, messages, place):
    api = make()
    status, body = await api.post(path, {"model": "fake", "messages": messages})
    assert status == 400
    assert error(body).startswith(f"{place} must not contain <")
    assert not api.backend.submitted


async def test_tokens_are_not_cut_from_a_prompt_with_images(make):
    api = make()
    assert (
        await api.refused(V1, chat(image(), truncate_prompt_tokens=5)) == "truncate_prompt_tokens"
    )
    await api.answer(V1, chat(text("0123456789"), truncate_prompt_tokens=5))
    request = api.backend.submitted[-1]
    assert (request.prompt, len(request.prompt_token_ids)) == (None, 5)


# The backend's arguments for a prompt, and the errors of requests that exceed limits.


CHATS = ("/v1/chat/completions", {"messages": MESSAGES})
RESPONSES = ("/v1/responses", {"input": "ab"})


async def refusal(make_api, endpoint: tuple[str, dict[str, Any]], fields) -> tuple[str, str]:
    """Returns the field that an error names, and its message."""
    path, body = endpoint
    api = make_api(
        "z",
        model=model_info(max_model_len=2000),
        chat=chat_model(),
        config=ApiConfig(max_total_logprobs=1),
    )
    status, answer = await api.post(path, {"model": "fake", **body, **fields})
    assert (status, api.backend.submitted) == (400, [])
    return answer["error"]["param"], answer["error"]["message"]


@pytest.mark.parametrize(
    ("endpoint", "fields", "name", "limit"),
    [
        (COMPLETIONS, {"logprobs": 2}, "logprobs 2", "max_tokens 10"),
        (CHATS, {"logprobs": True, "top_logprobs": 2}, "top_logprobs 2", "max_tokens 10"),
        (CHATS, {"logprobs": True}, "logprobs 0", "max_completion_tokens 10"),
        (RESPONSES, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
         "top_logprobs 2", "max_output_tokens 10"),
    ],
)  # fmt: skip
async def test_too_many_log_probabilities_are_named_as_the_client_does(
    make_api, endpoint, fields, name, limit
):
    limit_field = limit.split()[0]
    param, message = await refusal(make_api, endpoint, {**fields, limit_field: 10})
    assert param == name.split()[0]
    assert message.startswith(f"{param} would report up to ")
    assert f" ({name}, n 1, " in message
    assert f" prompt tokens, {limit})" in message


@pytest.mark.parametrize(
    ("endpoint", "limit"),
    [
        (COMPLETIONS, "max_tokens"),
        (CHATS, "max_tokens"),
        (CHATS, "max_completion_tokens"),
        (RESPONSES, "max_output_tokens"),
    ],
)
async def test_more_tokens_at_least_than_at_most(make_api, endpoint, limit):
    param, message = await refusal(make_api, endpoint, {"min_tokens": 5, limit: 4})
    assert (param, message) == ("min_tokens", f"min_tokens must be at most {limit} (4), not 5")
