"""Blocks become text, with tags where images stand."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.messages.content_blocks import BlockReader, read_blocks
from fastovms.errors import InvalidField
from fastovms.media.image_tags import image_tag
from fastovms.media.loader import GivenImages, ImageSource

URL = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
BASE64 = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    "cache_control": {"type": "ephemeral"},
}
TEXT = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "tool_reference", "tool_name": "f"}], "f"),
        ([{"type": "browser_state", "tabs": []}], '{"tabs": [], "state_changes": null}'),
        ([{"type": "container_upload", "file_id": "f"}], "[file: this model cannot read it]"),
        (
            [{**document(type="base64"), "title": "a.pdf"}],
            "[file a.pdf: this model cannot read it]",
        ),
        ("a", "a"),
        ([], ""),
        ([TEXT, {"type": "text", "text": "b", "citations": None}], "a\nb"),
        ([TEXT, BASE64, TEXT, URL], f"a{image_tag(0)}a{image_tag(1)}"),
        ([document(type="text", media_type="text/plain", data="d")], "d"),
        ([{**document(type="text", data="d"), "title": "t", "context": "c"}], "t\nc\nd"),
        ([document(type="content", content="d")], "d"),
        ([document(type="content", content=[TEXT, URL])], f"a{image_tag(0)}"),
        ([{"type": "search_result", "title": "t", "source": "s", "content": [TEXT]}], "t\ns\na"),
    ],
)
def test_texts(content: Any, text: str) -> None:
    assert BlockReader(GivenImages(2))(read_blocks(content, "content")) == text


def test_images() -> None:
    images = GivenImages(2)
    BlockReader(images)(read_blocks([BASE64, URL], "content"))
    assert images.sources == [
        ImageSource("data:image/png;base64,AAAA", "content[0].source.data", "auto"),
        ImageSource("http://a/b.png", "content[1].source.url", "auto"),
    ]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (5, "content"),
        (None, "content"),
        ([5], "content[0]"),
        ([{}], "content[0].type"),
        ([URL, URL, URL], "content[2].source.url"),
        ([TEXT, {"type": "text"}], "content[1].text"),
        ([{"type": "text", "text": 5}], "content[0].text"),
        ([{"type": "other"}], "content[0]"),
        ([{"type": "tool_result"}], "content[0]"),
        ([{"type": "image"}], "content[0].source"),
        ([{"type": "image", "source": {}}], "content[0].source.type"),
        ([{"type": "image", "source": {"type": "file"}}], "content[0].source.type"),
        ([{"type": "image", "source": {"type": "url", "url": ""}}], "content[0].source.url"),
        (
            [{"type": "image", "source": {"type": "base64", "data": "A"}}],
            "content[0].source.media_type",
        ),
        ([document(type="base64")], "content[0].source.type"),
        ([document(type="content", content=5)], "content[0].source.content"),
        (
            [document(type="content", content=[{"type": "other"}])],
            "content[0].source.content[0]",
        ),
        ([{"type": "search_result", "content": []}], "content[0].title"),
    ],
)
def test_faults(content: Any, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        BlockReader(GivenImages(2))(read_blocks(content, "content", is_new=True))
    assert caught.value.param == param
    assert param in caught.value.message


def test_images_of_a_model_that_takes_none() -> None:
    with pytest.raises(InvalidField, match=r'content\[0\] is of type "image".*only text'):
        BlockReader()(read_blocks([URL], "content", is_new=True))
