"""Messages of Ollama's clients."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.ollama.ollama_messages import read_ollama_messages
from fastovms.api.wire.dialect import OLLAMA
from fastovms.errors import InvalidField
from fastovms.media.image_tags import image_tag
from fastovms.media.loader import GivenImages, ImageSource

USER = {"role": "user", "content": "Look"}


def read(*messages: dict[str, Any], takes_images: bool = True) -> Any:
    return read_ollama_messages(messages, OLLAMA, GivenImages(3) if takes_images else None)


def call(name: str = "add", **members: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"a": 1}}, **members}


def test_images_stand_before_the_text_in_order() -> None:
    found = read(
        {**USER, "images": ["aGk=", "data:image/png;base64,aGk="]}, {**USER, "images": ["eA=="]}
    )
    assert [message["content"] for message in found.messages] == [
        f"{image_tag(0)}{image_tag(1)}Look",
        f"{image_tag(2)}Look",
    ]
    assert found.images == [
        ImageSource("data:image/*;base64,aGk=", "messages[0].images[0]"),
        ImageSource("data:image/png;base64,aGk=", "messages[0].images[1]"),
        ImageSource("data:image/*;base64,eA==", "messages[1].images[0]"),
    ]


def test_results_get_the_ids_of_their_calls() -> None:
    found = read(
        USER,
        {"role": "assistant", "tool_calls": [call("add"), call("sub"), call("mul", id="mine")]},
        {"role": "tool", "content": "1", "tool_name": "sub"},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3", "tool_call_id": "mine"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "", "tool_calls": [call("add")]},
        {"role": "tool", "content": "5", "tool_name": "other"},
    ).messages
    ids = [each["id"] for each in found[1]["tool_calls"]]
    assert ids == ["call00000", "call00001", "mine"]
    results = [(each.get("name"), each.get("tool_call_id")) for each in found[2:6]]
    assert results == [("sub", ids[1]), ("add", ids[0]), ("mul", "mine"), (None, None)]
    assert found[7]["tool_call_id"] == found[6]["tool_calls"][0]["id"] == "call00003"
    assert found[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}


def test_thoughts_are_sent_back() -> None:
    [_, answer] = read(USER, {"role": "assistant", "content": "a", "thinking": "hm"}).messages
    assert answer == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("message", "takes_images", "words"),
    [
        ({**USER, "images": ["aGk="]}, False, r"messages\[0\].images: this model takes no images"),
        ({**USER, "images": "aGk="}, True, r"messages\[0\].images must be a list of base64"),
        ({**USER, "images": [5]}, True, r"messages\[0\].images\[0\] must be base64, not 5"),
        (
            {**USER, "images": ["aGk="] * 4},
            True,
            r"messages\[0\].images\[3\] is one image too many",
        ),
        ({"content": "a"}, True, r"messages\[0\].role must be a string, not null"),
        ({**USER, "content": 5}, True, r"messages\[0\].content must be a string"),
    ],
)
def test_refusals(message: dict[str, Any], takes_images: bool, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        read(message, takes_images=takes_images)
