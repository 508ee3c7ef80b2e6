"""Prompts with images, for the backend."""

from __future__ import annotations

import pytest

from tests.api.serving.test_images import (
    TAG,
    V1,
    V3,
    chat,
    error,
    given,
    image,
    make,
    text,
    user,
)
from tests.media.pictures import BLUE, RED

__all__ = ["make"]


async def test_images_are_numbered_through_all_messages(make):
    api = make()
    messages = [
        user(image(), text("one")),
        {"role": "assistant", "content": "I see"},
        {"role": "tool", "content": [text("look"), image(BLUE)], "tool_call_id": "x"},
        user(image()),
    ]
    status, body = await api.post(V1, {"model": "fake", "messages": messages})
    assert status == 200, body
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
async def test_nobody_writes_images_into_a_text(make, path, messages, place):
    api = make()
    status, body = await api.post(path, {"model": "fake", "messages": messages})
    assert status == 400
    assert error(body).startswith(f"{place} must not contain <")
    assert not api.backend.submitted


async def test_tokens_are_not_cut_from_a_prompt_with_images(make):
    api = make()
    status, body = await api.post(V1, chat(image(), truncate_prompt_tokens=5))
    assert (status, body["error"]["param"]) == (400, "truncate_prompt_tokens")
    status, _ = await api.post(V1, chat(text("0123456789"), truncate_prompt_tokens=5))
    assert status == 200
    request = api.backend.submitted[-1]
    assert (request.prompt, len(request.prompt_token_ids)) == (None, 5)
