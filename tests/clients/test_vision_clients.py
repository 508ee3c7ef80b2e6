"""Tests of Anthropic's and Ollama's clients that send images to a real vision server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import pytest

from tests.media.pictures import BLUE, png
from tests.paths import TINY_VLM
from tests.real_server import Server, start_server, stop_server

NAME = TINY_VLM.name
PICTURE, BLUE_PICTURE = (base64.b64encode(png(84, 56, *color)).decode() for color in ((), (BLUE,)))
GREEDY = {"temperature": 0, "num_predict": 8}
NUM_IMAGE_TOKENS = 8
"""The number of tokens of one image: six between two markers."""

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server(str(TINY_VLM))
    yield server
    stop_server(server)


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


def image(data: str) -> dict[str, Any]:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
        "cache_control": {"type": "ephemeral"},
    }


def user(*blocks: dict[str, Any], text: str = "what?") -> dict[str, Any]:
    return {"role": "user", "content": [*blocks, {"type": "text", "text": text}]}


def shot(data: str) -> list[dict[str, Any]]:
    """Returns the result of a tool with an image."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image(data)]}
    return [
        user(),
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]


def asked(messages: list[dict[str, Any]], **fields: Any) -> Any:
    extra = {"temperature": 0, "ignore_eos": True}
    return {"model": NAME, "max_tokens": 8, "messages": messages, "extra_body": extra, **fields}


def read(message: anthropic.types.Message) -> int:
    """Returns the number of tokens of a prompt."""
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_image_of_a_message_changes_the_answer_and_counts_in_usage(
    client: anthropic.Anthropic,
) -> None:
    first = client.messages.create(**asked([user(image(PICTURE))]))
    other = client.messages.create(**asked([user(image(BLUE_PICTURE))]))
    bare = client.messages.create(**asked([user()]))
    assert first.content != other.content
    assert read(first) == read(other) == read(bare) + NUM_IMAGE_TOKENS
    with client.messages.stream(**asked([user(image(PICTURE))])) as stream:
        message = stream.get_final_message()
    assert message.content[0].text == first.content[0].text  # type: ignore[union-attr]
    assert read(message) == read(first)


@pytest.mark.parametrize(
    "messages",
    [
        [user(image(PICTURE))],
        [user(image(PICTURE), image(BLUE_PICTURE), text="and now?")],
        shot(PICTURE),
    ],
    ids=["one", "two", "of a tool"],
)
def test_count_tokens_with_images_equals_the_usage(
    client: anthropic.Anthropic, messages: Any
) -> None:
    counted = client.messages.count_tokens(model=NAME, messages=messages, system="Be brief.")
    answered = client.messages.create(**asked(messages, system="Be brief."))
    assert counted.input_tokens == read(answered)


@pytest.mark.nightly
def test_ollama_client_sends_images_in_chat_and_generate(server: Server) -> None:
    with ollama.Client(host=server.url) as client:
        chats = [
            client.chat(
                NAME, [{"role": "user", "content": "what?", "images": images}], options=GREEDY
            )
            for images in ([PICTURE], [base64.b64decode(PICTURE)], [BLUE_PICTURE], [])
        ]
        first, same, other, bare = (chat.message.content for chat in chats)
        assert first == same
        assert len({first, other, bare}) == 3
        assert chats[0].prompt_eval_count == chats[3].prompt_eval_count + NUM_IMAGE_TOKENS
        prompted = client.generate(NAME, "what?", images=[PICTURE], options=GREEDY)
        assert prompted.response == first
        assert "vision" in client.show(NAME).capabilities
        with pytest.raises(ollama.ResponseError, match=r"images\[0\]"):
            client.generate(NAME, "what?", images=[base64.b64encode(b"no image").decode()])
