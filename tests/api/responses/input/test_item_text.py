"""The texts of contents, with tags in place of images."""

from __future__ import annotations

import pytest

from fastovms.api.responses.input.item_text import text_of
from fastovms.api.serving.images import UnseenParts
from fastovms.errors import InvalidField
from fastovms.media.image_tags import image_tag
from fastovms.media.loader import GivenImages

URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "input_image", "image_url": URL}
PARTS = [
    {"type": "input_text", "text": "a"},
    {"type": "refusal", "refusal": "b"},
    IMAGE,
    {"type": "output_text", "text": "c"},
]


@pytest.mark.parametrize(
    ("content", "text"),
    [("a", "a"), ([], ""), (PARTS[:2], "a\nb"), (PARTS, f"a\nb{image_tag(0)}c")],
)
def test_texts(content, text):
    images = GivenImages(1)
    assert text_of(content, "input[0].content", images) == text
    assert [image.url for image in images.sources] == [URL] * (content is PARTS)


def test_an_image_too_many():
    with pytest.raises(InvalidField) as caught:
        text_of([*PARTS, IMAGE], "input[0].content", GivenImages(1))
    assert caught.value.param == "input[0].content[4].image_url"


FILE = {"type": "input_file", "filename": "a.pdf", "file_id": "f"}


@pytest.mark.parametrize(
    ("parts", "images", "place"),
    [
        (PARTS, None, "input[2]"),
        ([FILE], None, "input[0]"),
        ([FILE], GivenImages(1), "input[0]"),
        ([{"type": "input_image", "file_id": "f"}], GivenImages(1), "input[0].file_id"),
    ],
)
def test_media_that_the_model_cannot_read_are_refused_or_noted(parts, images, place):
    with pytest.raises(InvalidField) as caught:
        text_of(parts, images=images)
    assert caught.value.param == place
    unseen = UnseenParts()
    assert "this model cannot read it]" in text_of(parts, images=images, unseen=unseen)
    assert place.removesuffix(".file_id") in unseen.warnings[0]
